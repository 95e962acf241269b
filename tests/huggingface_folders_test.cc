// Hugging Face folders as people have them: without a tokenizer, or with one that is not read here, with copies
// of tied weights; and the places where one is exported to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/checkpoint.h"
#include "checkpoint/huggingface/exporter.h"
#include "program.h"

namespace meshtrain {
namespace {

fs::path data(const std::string& name) {
  return fs::path(MESHTRAIN_TEST_DATA) / "huggingface" / name;
}

class HuggingFaceFolders : public ProgramTest {
 protected:
  // gpt2 without any file of a tokenizer.
  void copy_without_tokenizer(const std::string& name) const {
    fs::create_directory(path(name));
    for (const char* file : {"config.json", "model.safetensors"}) fs::copy(data("gpt2") / file, path(name));
  }
  static Arguments small_run(const std::string& folder) {
    return set({"data.seq_len=16", "train.steps=1", "train.global_batch=2", "train.micro_batch=1",
                "machine.threads=1", "machine.peak_tflops=off", "output.dir=" + folder});
  }
};

// Bytes would be tokens of the model, too, but other ones.
TEST_F(HuggingFaceFolders, WithoutATokenizerOnlyTokenFilesAreRead) {
  copy_without_tokenizer("model");
  write_text("text.txt");
  for (const Arguments& text :
       {Arguments{"generate", "model", "--prompt", "the sea"}, Arguments{"generate", "model"},
        Arguments{"eval", "model", "--data", "text.txt"},
        Arguments{"train", "model", "-s", "data.train=text.txt"}}) {
    expect_refused(text, {"data.tokenizer = \"none\"", "tokenizer.json"});
  }
  // Said, it is another matter.
  succeed(Arguments{"eval", "model", "--data", "text.txt", "-s", "data.tokenizer=bytes", "--tokens", "1"});

  // Some of these ids are no bytes.
  succeed(
      {"tokenize", "text.txt", "--out", "tokens", "--tokenizer", (data("gpt2") / "tokenizer.json").string()});
  succeed({"ckpt", "import", "model", "--out", "model.ckpt"});
  const Arguments eval = {"--data", "tokens", "-s", "data.seq_len=16"};
  const nlohmann::json loss = succeed_with_json(Arguments{"eval", "model", "--json"} + eval);
  EXPECT_TRUE(loss.at("bits_per_byte").is_null());
  const nlohmann::json known = succeed_with_json(Arguments{"eval", data("gpt2").string(), "--json"} + eval);
  EXPECT_EQ(loss.at("nats_per_token"), known.at("nats_per_token"));
  EXPECT_TRUE(known.at("bits_per_byte").is_number());
  EXPECT_EQ(succeed_with_json(Arguments{"eval", "model.ckpt", "--json"} + eval).at("nats_per_token"),
            loss.at("nats_per_token"));
  succeed(Arguments{"train", "model", "-s", "data.train=tokens", "-s", "data.valid=tokens"} + small_run("run"));
  const Outcome exported = succeed({"ckpt", "export", "run", "--out", "back"});
  expect_contains(exported.err, {"without a tokenizer", "none"});
  EXPECT_FALSE(exists("back/tokenizer.json"));
}

// As Llama 2's and Mistral's folders have both.
TEST_F(HuggingFaceFolders, ATokenizerOfAnotherKindGivesWayToSentencePiece) {
  copy_without_tokenizer("model");
  write("model/tokenizer.json", R"({"version": "1.0", "model": {"type": "BPE", "byte_fallback": true,
    "vocab": {"<unk>": 0, "a": 1}, "merges": []}, "decoder": {"type": "ByteFallback"}})");
  expect_refused({"generate", "model", "--prompt", "a"}, {"model/tokenizer.json"});
  write_text("text.txt");
  succeed({"tokenize", "text.txt", "--out", "tokens", "--train-sentencepiece", "model/tokenizer", "--vocab",
           "270"});
  EXPECT_TRUE(succeed({"generate", "model", "--prompt", "the", "--tokens", "2"}).out.starts_with("the"));
  succeed({"ckpt", "import", "model", "--out", "ckpt"});
  const std::string config = Checkpoint(path("ckpt").string()).state().at("config").get<std::string>();
  expect_contains(config, {"tokenizer = \"sentencepiece:tokenizer/tokenizer.model\""});
}

TEST_F(HuggingFaceFolders, ACopyOfTheEmbeddingIsComparedBeforeAnythingIsWritten) {
  fs::copy(data("llama"), path("tied"));
  nlohmann::json config = read_json("tied/config.json");
  config["tie_word_embeddings"] = true;
  write("tied/config.json", config.dump());
  expect_refused({"ckpt", "import", "tied", "--out", "ckpt"}, {"tied", "lm_head.weight is not equal"});
  EXPECT_FALSE(exists("ckpt"));
}

// --- Where an export goes ----------------------------------------------------------------------------

TEST_F(HuggingFaceFolders, WhatIsThereIsNotOverwritten) {
  succeed({"ckpt", "import", data("qwen3").string(), "--out", "a"});
  expect_refused({"ckpt", "import", data("qwen3").string(), "--out", "a"}, {"--out a", "not empty"});
  expect_refused({"ckpt", "export", "a", "--out", "a"}, {"--out a", "not empty"});
  write("file", "x");
  expect_refused({"ckpt", "export", "a", "--out", "file"}, {"--out file", "is a file"});
  fs::create_directory(path("empty"));
  succeed({"ckpt", "export", "a", "--out", "empty/"});
  EXPECT_TRUE(exists("empty/config.json"));
  const Outcome overflow = run({"ckpt", "export", "missing", "--out", "b"});
  EXPECT_EQ(overflow.status, 2) << overflow;
  EXPECT_FALSE(exists("b.partial"));
}

TEST_F(HuggingFaceFolders, AWeightThatTheTypeCannotHoldIsAnErrorAndLeavesNothing) {
  fs::copy(data("gpt2"), path("large"));
  std::string file = read("large/model.safetensors");
  const float huge = 1e6F;
  std::memcpy(file.data() + file.size() - sizeof huge, &huge, sizeof huge);
  write("large/model.safetensors", file);
  succeed({"ckpt", "import", "large", "--out", "large.ckpt"});
  const Outcome outcome = run({"ckpt", "export", "large.ckpt", "--out", "out", "--dtype", "fp16"});
  EXPECT_EQ(outcome.status, 1) << outcome;
  expect_contains(outcome.err, {"1e+06", "fp16 cannot hold"});
  EXPECT_FALSE(exists("out") || exists("out.partial"));
  succeed({"ckpt", "export", "large.ckpt", "--out", "out", "--dtype", "bf16"});
}

TEST_F(HuggingFaceFolders, WhatHasTheNameOfAnUnfinishedExportIsKept) {
  succeed({"ckpt", "import", data("gpt2").string(), "--out", "ckpt"});
  fs::create_directory(path("out.partial"));
  write("out.partial/mine", "precious");
  expect_refused({"ckpt", "export", "ckpt", "--out", "out"}, {"out.partial", "remove or rename"});
  EXPECT_EQ(read("out.partial/mine"), "precious");
  // One that an export left, which has its mark, goes.
  write("out.partial/.meshtrain-partial", "");
  succeed({"ckpt", "export", "ckpt", "--out", "out"});
  EXPECT_FALSE(exists("out.partial"));
  EXPECT_FALSE(exists("out/mine") || exists("out/.meshtrain-partial"));
}

// At no moment is there a folder that reads as a model and has less than all of it.
TEST_F(HuggingFaceFolders, AnUnfinishedExportIsNoModel) {
  succeed({"ckpt", "import", data("qwen3").string(), "--out", "ckpt"});
  const Checkpoint checkpoint(path("ckpt").string());
  const HfRecord record = hf_record_from_json(checkpoint.state().at("huggingface"), "ckpt");
  const HuggingFaceFolder folder(data("qwen3").string());
  std::int64_t steps = 0;
  const auto watch = [&](std::string_view, std::string_view about) {
    if (about.find(".safetensors") == std::string_view::npos) return;
    ++steps;
    EXPECT_FALSE(exists("out") || exists("out.partial/config.json") ||
                 exists("out.partial/contents/config.json"));
  };
  write_hf_folder(checkpoint, folder.spec(), record, {}, path("out").string(), watch);
  EXPECT_GT(steps, 4);
  EXPECT_TRUE(exists("out/config.json"));
}

TEST_F(HuggingFaceFolders, LinksAreFollowedUnlessToNothing) {
  succeed({"ckpt", "import", data("qwen3").string(), "--out", "ckpt"});
  fs::create_directories(path("disk/models"));
  fs::create_directory_symlink(path("disk/models"), path("link"));
  succeed({"ckpt", "export", "ckpt", "--out", "link"});
  EXPECT_TRUE(exists("disk/models/config.json"));
  EXPECT_TRUE(fs::is_symlink(path("link")));
  fs::create_directory_symlink(path("gone"), path("nothing"));
  expect_refused({"ckpt", "export", "ckpt", "--out", "nothing"}, {"--out nothing", "link to nothing"});
  expect_refused({"ckpt", "import", data("qwen3").string(), "--out", "nothing"}, {"--out nothing"});
}

TEST_F(HuggingFaceFolders, AFolderIsNoCheckpoint) {
  for (const std::string command : {"inspect", "digest", "verify"}) {
    expect_refused({"ckpt", command, data("qwen3").string()}, {"is a Hugging Face folder", "ckpt import"});
  }
  expect_refused({"ckpt", "export", data("qwen3").string(), "--out", "out"}, {"is a Hugging Face folder"});
}

TEST_F(HuggingFaceFolders, AFileOfAModelPointsToItsFolder) {
  expect_refused({"eval", (data("qwen3") / "config.json").string()}, {"config.json", "name the folder"});
}

}  // namespace
}  // namespace meshtrain
