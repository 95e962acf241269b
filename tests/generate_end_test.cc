// Where `meshtrain generate` ends a text and where its prompt comes from. chat.json holds what the Hugging Face
// library does (tests/reference/generation.py).
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "program.h"

namespace meshtrain {
namespace {

using Json = nlohmann::json;

fs::path data(const std::string& name) {
  return fs::path(MESHTRAIN_TEST_DATA) / "huggingface" / name;
}

Json token_ids_of(const Json& config) {
  Json ids = Json::object();
  for (const auto& [key, value] : config.items())
    if (key.ends_with("_token_id")) ids[key] = value;
  return ids;
}

class GenerateEnd : public ProgramTest {
 protected:
  // The folder "chat" with other token ids.
  void make_folder(const std::string& name, const Json& ids, const Json& generation_config = nullptr) const {
    fs::copy(data("chat"), path(name));
    Json config = read_json(name + "/config.json");
    const Json old = token_ids_of(config);
    for (const auto& [key, ignored] : old.items()) config.erase(key);
    config.update(ids);
    write(name + "/config.json", config.dump(2));
    if (!generation_config.is_null()) write(name + "/generation_config.json", generation_config.dump());
  }
  std::string greedy(const std::string& model, const std::string& prompt) const {
    const Arguments options = {"--prompt", prompt, "--tokens", "40", "--temperature", "0"};
    return succeed(Arguments{"generate", model} + options + set({"precision.compute=fp32"})).out;
  }
  // A run of one step that changes no weight.
  Arguments idle_step(const std::string& folder) const {
    std::vector<std::int32_t> tokens(256 + 250);  // an llm.c file of 500 tokens
    tokens[0] = 20240520;
    tokens[1] = 1;
    tokens[2] = 500;
    write("tokens.bin", std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * 4));
    return set({"data.train=tokens.bin", "data.seq_len=96", "train.steps=1", "train.global_batch=1",
                "train.micro_batch=1", "optimizer.lr=0", "optimizer.weight_decay=0", "precision.compute=fp32",
                "machine.threads=1", "machine.peak_tflops=off", "output.dir=" + folder});
  }
  // `text` as standard input.
  BeforeExec reading(const std::string& text) const {
    write("stdin", text);
    return [file = path("stdin").string()] { dup2(open(file.c_str(), O_RDONLY), STDIN_FILENO); };
  }
};

TEST_F(GenerateEnd, IsWhereTheLibraryEnds) {
  const Json cases = Json::parse(read_file(data("chat.json")));
  ASSERT_GT(cases.size(), 20U);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Json& entry = cases[i];
    SCOPED_TRACE(entry.dump());
    const std::string folder = "model" + std::to_string(i);
    make_folder(folder, entry["config"], entry.value("generation_config", Json()));
    const std::string prompt = entry["prompt"];
    EXPECT_EQ(greedy(folder, prompt), prompt + entry["text"].get<std::string>() + "\n");
  }
}

// Whatever is made of the folder, and when the folder is gone.
TEST_F(GenerateEnd, IsRememberedByRunsAndExports) {
  const Json cases = Json::parse(read_file(data("chat.json")));
  for (const std::size_t i : {2U, 4U, 7U}) {  // a list in either file; null in generation_config.json
    const Json& entry = cases.at(i);
    SCOPED_TRACE(entry.dump());
    make_folder("model", entry["config"], entry.value("generation_config", Json()));
    const std::string tokenizer = read("model/tokenizer.json");
    succeed({"ckpt", "import", "model", "--out", "ckpt"});
    write("imported.toml", "[model]\nfrom = \"ckpt\"\n");
    write("again.toml", "[model]\nfrom = \"run\"\n");
    succeed(Arguments{"train", "model"} + idle_step("run"));
    succeed(Arguments{"train", "model", "--resume-from", "ckpt"} + idle_step("resumed"));
    succeed(Arguments{"train", "imported.toml"} + idle_step("from-import"));
    succeed(Arguments{"train", "again.toml"} + idle_step("from-run"));
    succeed({"ckpt", "export", "run", "--out", "exported"});
    succeed({"ckpt", "export", "from-run", "--out", "exported-again"});
    succeed({"ckpt", "export", "from-import", "--out", "exported-import"});
    const Json config = read_json("model/config.json");
    fs::remove_all(path("model"));
    fs::create_directory(path("model"));
    write("model/tokenizer.json", tokenizer);
    const std::string prompt = entry["prompt"];
    for (const char* model : {"ckpt", "run", "resumed", "from-import", "from-run", "exported", "exported-again",
                              "exported-import"}) {
      EXPECT_EQ(greedy(model, prompt), prompt + entry["text"].get<std::string>() + "\n") << model;
    }
    for (const std::string folder : {"exported", "exported-again", "exported-import"}) {
      EXPECT_EQ(token_ids_of(read_json(folder + "/config.json")), token_ids_of(config)) << folder;
      EXPECT_EQ(exists(folder + "/generation_config.json"), entry.contains("generation_config")) << folder;
    }
    for (const char* name : {"model", "ckpt", "run", "resumed", "from-import", "from-run", "exported",
                             "exported-again", "exported-import"})
      fs::remove_all(path(name));
  }
}

// Also those of a model whose tokenizer is not in its folder, and fields that mean nothing to generation.
TEST_F(GenerateEnd, TokenIdsAreExportedAsTheyCame) {
  const Json ids = {{"bos_token_id", 0},
                    {"eos_token_id", {5, 2, 1}},
                    {"pad_token_id", -1},
                    {"sep_token_id", nullptr},
                    {"decoder_start_token_id", 3}};
  make_folder("model", ids, {{"eos_token_id", {7}}, {"top_k", 20}});
  fs::rename(path("model/tokenizer.json"), path("tokenizer.json"));
  fs::rename(path("model/tokenizer_config.json"), path("tokenizer_config.json"));
  write("generation_config.json", "{}");  // another model's, beside its tokenizer
  succeed(Arguments{"train", "model", "-s", "data.tokenizer=tokenizer.json"} + idle_step("run"));
  succeed({"ckpt", "export", "run", "--out", "out", "--dtype", "bf16"});
  EXPECT_EQ(token_ids_of(read_json("out/config.json")), ids);
  EXPECT_EQ(read("out/generation_config.json"), read("model/generation_config.json"));
  EXPECT_TRUE(exists("out/tokenizer_config.json"));
  // A folder that has none gets none.
  make_folder("plain", {{"eos_token_id", 4}});
  succeed(Arguments{"train", "plain", "-s", "data.tokenizer=tokenizer.json"} + idle_step("run2"));
  succeed({"ckpt", "export", "run2", "--out", "out2"});
  EXPECT_EQ(token_ids_of(read_json("out2/config.json")), Json({{"eos_token_id", 4}}));
  EXPECT_FALSE(exists("out2/generation_config.json"));
}

// The tokenizer's own mark between documents, whatever the folder's files say.
TEST_F(GenerateEnd, IsAlsoAtTheEndOfADocument) {
  make_folder("model", {{"eos_token_id", nullptr}});
  const Json entry = Json::parse(read_file(data("chat.json"))).at(2);  // ends with <|stop|>
  ASSERT_EQ(entry["ids"].back(), 1);
  std::string tokenizer = read("model/tokenizer.json");
  for (std::size_t at = 0; (at = tokenizer.find("<|stop|>")) != std::string::npos;)
    tokenizer.replace(at, 8, "<|endoftext|>");
  write("model/tokenizer.json", tokenizer);
  const std::string prompt = entry["prompt"];
  EXPECT_EQ(greedy("model", prompt), prompt + entry["text"].get<std::string>() + "\n");
}

TEST_F(GenerateEnd, ValuesThatAreNoIdsAreRefused) {
  const std::vector<std::pair<Json, std::string>> values = {{"</s>", "\"</s>\""},  {-1, "-1"},
                                                            {2.0, "2.0"},          {true, "true"},
                                                            {Json::array(), "[]"}, {{2, "x"}, "[2,\"x\"]"},
                                                            {{{1}}, "[[1]]"},      {{{"id", 1}}, "{\"id\":1}"}};
  int i = 0;
  for (const auto& [value, shown] : values) {
    const std::string name = "m" + std::to_string(i++);
    make_folder(name, {{"eos_token_id", value}});
    const std::string part = "eos_token_id = " + shown;
    for (const Arguments& command :
         {Arguments{"generate", name, "--prompt", "x"}, Arguments{"ckpt", "import", name, "--out", "ckpt"},
          Arguments{"train", name} + idle_step("run")}) {
      expect_refused(command, {name + "/config.json", part});
    }
    write(name + "/generation_config.json", Json({{"eos_token_id", value}}).dump());
    expect_refused({"generate", name, "--prompt", "x"}, {name + "/generation_config.json", part});
  }
  make_folder("text", {{"eos_token_id", 1}});
  write("text/generation_config.json", "{\"eos_token_id\": 1,}");
  expect_refused({"generate", "text", "--prompt", "x"}, {"text/generation_config.json", "not JSON"});
}

// --- Where the prompt comes from ---------------------------------------------------------------------

TEST_F(GenerateEnd, ThePromptMayComeFromStandardInput) {
  make_folder("model", {{"eos_token_id", nullptr}});
  const Arguments options = {"generate", "model", "--tokens", "9", "--temperature", "0"};
  const auto expected = [&](const std::string& prompt) {
    return succeed(options + Arguments{"--prompt", prompt}).out;
  };
  const auto piped = [&](const std::string& text, const Arguments& more = {}) {
    const Outcome outcome = run(options + more, reading(text));
    EXPECT_EQ(outcome.status, 0) << outcome;
    return outcome.out;
  };
  EXPECT_TRUE(expected("the ship").starts_with("the ship"));
  EXPECT_EQ(piped("the ship\n"), expected("the ship"));
  EXPECT_EQ(piped("the ship\r\n"), expected("the ship"));
  EXPECT_EQ(piped("the ship"), expected("the ship"));
  EXPECT_EQ(piped("the ship\n\n"), expected("the ship\n"));
  EXPECT_EQ(piped("caf\u00e9 \U0001F600\n", {"--prompt", "-"}), expected("caf\u00e9 \U0001F600"));
  EXPECT_EQ(piped("ignored", {"--prompt", "the sea"}), expected("the sea"));
  const std::string large(200'000, 'a');
  EXPECT_TRUE(piped(large + "\n").starts_with(large));
}

TEST_F(GenerateEnd, AnEmptyStandardInputIsNoPrompt) {
  write_config("a.toml", "llama-tiny");
  succeed({"train", "a.toml", "-s", "train.steps=1", "-s", "optimizer.warmup=0"});
  const Arguments options = {"generate", "run", "--tokens", "5", "--temperature", "0"};
  const std::string none = succeed(options + Arguments{"--prompt", ""}).out;
  EXPECT_EQ(run(options, reading("")).out, none);
  EXPECT_EQ(run(options, reading("\n")).out, none);
  const BeforeExec closed = [] { close(STDIN_FILENO); };
  for (const Arguments& more : {Arguments{}, Arguments{"--prompt", "-"}}) {
    const Outcome outcome = run(options + more, closed);
    EXPECT_EQ(outcome.status, 0) << outcome;
    EXPECT_EQ(outcome.out, none);
  }
}

TEST_F(GenerateEnd, APromptThatIsNotUtf8IsRefused) {
  make_folder("model", {{"eos_token_id", nullptr}});
  expect_refused({"generate", "model", "--prompt", "caf\xE9"}, {"not valid UTF-8", "0xE9", "position 3"});
  const Outcome outcome = run({"generate", "model"}, reading("ab\xF0\x9F\x98\n"));
  EXPECT_EQ(outcome.status, 2) << outcome;
  expect_contains(outcome.err, {"not valid UTF-8", "position 2"});
}

TEST_F(GenerateEnd, TheSpeedIsSaidBesideTheText) {
  make_folder("model", {{"eos_token_id", nullptr}});
  const Outcome outcome = succeed({"generate", "model", "--prompt", "the ship", "--tokens", "7"});
  expect_contains(outcome.err, {"prompt: ", "generation: 7 tokens, ", " tokens/s"});
  EXPECT_EQ(succeed({"generate", "model", "--prompt", "the ship", "--tokens", "0"}).err, "");
}

}  // namespace
}  // namespace meshtrain
