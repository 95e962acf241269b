// `meshtrain train`: the data that it reads, the run folder that it leaves, and which bits depend on what.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "program.h"

namespace meshtrain {
namespace {

class Train : public ProgramTest {
 protected:
  std::vector<double> losses(const std::string& run_folder) const {
    std::vector<double> values;
    for (const nlohmann::json& line : metrics(run_folder)) {
      if (line.contains("loss")) values.push_back(line["loss"].get<double>());
    }
    return values;
  }
};

// A file as llm.c writes it, from the tokens of Megatron's u16 .bin.
std::string as_llmc(const std::string& u16_tokens) {
  std::vector<std::int32_t> header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = static_cast<std::int32_t>(u16_tokens.size() / 2);
  std::string file(header.size() * sizeof(std::int32_t), '\0');
  std::memcpy(file.data(), header.data(), file.size());
  return file + u16_tokens;
}

TEST_F(Train, ReadsTextMegatronAndLlmcTokensToTheSameBits) {
  write_config("a.toml", "llama-tiny");
  succeed({"tokenize", "text.txt", "--out", "corpus", "--tokenizer", "bytes"});
  write("llmc.bin", as_llmc(read("corpus.bin")));
  const auto train = [&](const std::string& data, const std::string& folder) {
    succeed({"train", "a.toml", "-s", "data.train=" + data, "-s", "data.valid=" + data, "-s",
             "output.dir=" + folder});
    return bits_of_metrics(folder);
  };
  const auto from_text = train("text.txt", "text");
  ASSERT_EQ(from_text.size(), 21U);  // 20 steps and the evaluation at the end
  EXPECT_EQ(train("corpus", "prefix"), from_text);
  EXPECT_EQ(train("corpus.bin", "bin"), from_text);
  EXPECT_EQ(train("corpus.idx", "idx"), from_text);
  EXPECT_EQ(train("llmc.bin", "llmc"), from_text);
}

TEST_F(Train, ReadsJsonLinesLikeTheTokenFilesMadeOfThem) {
  write_config("a.toml", "gpt2-tiny");
  std::string lines;
  for (int i = 0; i < 40; ++i) {
    lines += nlohmann::json{{"text", read("text.txt").substr(static_cast<std::size_t>(i) * 150, 150)}}.dump();
    lines += i == 7 ? "\n{\"text\": 3}\n" : "\n";
  }
  write("docs.jsonl", lines);
  const Outcome tokenized = succeed({"tokenize", "docs.jsonl", "--out", "corpus", "--tokenizer", "bytes"});
  expect_contains(tokenized.err, {"docs.jsonl:9"});
  expect_contains(tokenized.out, {"40 documents"});
  const Outcome trained = succeed({"train", "a.toml", "-s", "data.train=docs.jsonl"});
  expect_contains(trained.err, {"docs.jsonl:9"});
  succeed({"train", "a.toml", "-s", "data.train=corpus", "-s", "output.dir=other"});
  EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("other"));
}

TEST_F(Train, LeavesTheRunFolderOfTheDesign) {
  write_config("a.toml", "gpt2-tiny");
  const Outcome outcome =
      succeed({"train", "a.toml", "-s", "data.valid=text.txt", "-s", "train.eval_every=10", "-s",
               "checkpoint.every=6", "-s", "checkpoint.keep=2", "-s", "machine.peak_tflops=0.5"});
  expect_contains(outcome.out, {"20 steps", "run"});
  expect_contains(outcome.err, {"step 1/20", "step 20/20", "loss", "tokens/s", "MFU", "left", "eval loss"});

  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(path("run"))) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"checkpoints", "config.toml", "metrics.jsonl", "summary.json"}));
  names.clear();
  for (const auto& entry : fs::directory_iterator(path("run/checkpoints")))
    names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"step-00000018", "step-00000020"}));

  std::int64_t step = 0;
  std::vector<std::int64_t> evaluated;
  for (const nlohmann::json& line : metrics("run")) {
    if (line.contains("eval_loss")) {
      EXPECT_EQ(line["step"], step);
      // A byte is a token here, but for the one end of the document: nats and bits differ by ln 2.
      EXPECT_NEAR(line["eval_bits_per_byte"].get<double>(), line["eval_loss"].get<double>() / std::log(2.0),
                  0.01);
      evaluated.push_back(step);
      continue;
    }
    std::set<std::string> keys;
    for (const auto& [key, value] : line.items()) keys.insert(key);
    EXPECT_EQ(keys, (std::set<std::string>{"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second",
                                           "step_seconds", "mfu", "skipped"}));
    EXPECT_EQ(line["step"], ++step);
    EXPECT_EQ(line["tokens"], step * 4 * 32);
    EXPECT_EQ(line["skipped"], false);
    EXPECT_GT(line["grad_norm"], 0.0);
    EXPECT_NEAR(line["tokens_per_second"].get<double>() * line["step_seconds"].get<double>(), 4 * 32, 1e-6);
    // 6·N + 6·L·H·S of gpt2-tiny at 32 tokens: per block 64·192 + 64·64 + 2·64·256, and the head 257·64.
    const double flops = 6.0 * (2 * (12288 + 4096 + 32768) + 16448) + 6.0 * 2 * 64 * 32;
    EXPECT_NEAR(line["mfu"].get<double>(), line["tokens_per_second"].get<double>() * flops / 0.5e12, 1e-9);
  }
  EXPECT_EQ(step, 20);
  EXPECT_EQ(evaluated, (std::vector<std::int64_t>{10, 20}));

  const nlohmann::json summary = read_json("run/summary.json");
  EXPECT_EQ(summary["steps"], 20);
  EXPECT_EQ(summary["updates"], 20);
  EXPECT_EQ(summary["tokens"], 20 * 4 * 32);
  EXPECT_EQ(summary["parameters"], 132928);
  EXPECT_EQ(summary["checkpoint"], "run/checkpoints/step-00000020");
  EXPECT_EQ(summary["loss"], losses("run").back());
  EXPECT_EQ(summary["eval_loss"], metrics("run").back()["eval_loss"]);
  EXPECT_GT(summary["memory"]["total"], 0);
  EXPECT_GT(summary["peak_resident_bytes"], summary["memory"]["total"]);

  // What was resolved is a config that gives the same run.
  fs::copy_file(path("run/config.toml"), path("resolved.toml"));
  succeed({"train", "resolved.toml", "-s", "output.dir=again", "-s", "checkpoint.dir=again/checkpoints"});
  EXPECT_EQ(bits_of_metrics("again"), bits_of_metrics("run"));
}

TEST_F(Train, TheSameConfigGivesTheSameBits) {
  write_config("a.toml", "llama-tiny");
  for (const std::string folder : {"one", "two"}) {
    succeed({"train", "a.toml", "-s", "precision.compute=bf16", "-s", "output.dir=" + folder});
  }
  EXPECT_EQ(bits_of_metrics("one"), bits_of_metrics("two"));
  EXPECT_EQ(read("one/checkpoints/step-00000020/model.safetensors"),
            read("two/checkpoints/step-00000020/model.safetensors"));
  succeed({"train", "a.toml", "-s", "precision.compute=bf16", "-s", "output.dir=three", "-s", "train.seed=2"});
  EXPECT_NE(losses("one").front(), losses("three").front());
}

TEST_F(Train, TheNumberOfThreadsChangesNoBit) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    write_config("a.toml", preset);
    for (const std::string compute : {"fp32", "bf16"}) {
      for (const std::string threads : {"1", "2", "3"}) {
        succeed({"train", "a.toml", "-s", "train.steps=6", "-s", "precision.compute=" + compute, "-s",
                 "machine.threads=" + threads, "-s", "output.dir=" + threads});
        const std::string files = "/checkpoints/step-00000006/";
        EXPECT_EQ(bits_of_metrics(threads), bits_of_metrics("1")) << preset << ' ' << compute << ' ' << threads;
        for (const std::string file : {"model.safetensors", "optimizer.safetensors"}) {
          EXPECT_EQ(read(threads + files + file), read("1" + files + file))
              << preset << ' ' << compute << ' ' << threads << ' ' << file;
        }
        EXPECT_EQ(read_json(threads + "/summary.json")["threads"], std::stoi(threads));
      }
    }
  }
}

TEST_F(Train, MicroBatchSplitsAgreeToRounding) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    write_config("a.toml", preset);
    for (const std::string micro_batch : {"1", "2", "4"}) {
      succeed({"train", "a.toml", "-s", "train.steps=8", "-s", "train.micro_batch=" + micro_batch, "-s",
               "output.dir=" + micro_batch});
    }
    const std::vector<double> whole = losses("4");
    ASSERT_EQ(whole.size(), 8U);
    for (const std::string split : {"1", "2"}) {
      const std::vector<double> parts = losses(split);
      ASSERT_EQ(parts.size(), whole.size());
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_NEAR(parts[i], whole[i], 1e-5 * whole[i]) << preset << " step " << i + 1 << " micro " << split;
      }
    }
  }
}

TEST_F(Train, LearnsFromRealText) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    for (const std::string compute : {"fp32", "bf16", "fp16"}) {
      write_config("a.toml", preset);
      succeed({"train", "a.toml", "-s", "train.steps=80", "-s", "precision.compute=" + compute, "-s",
               "output.dir=" + preset + compute});
      const std::vector<double> values = losses(preset + compute);
      ASSERT_EQ(values.size(), 80U);
      EXPECT_NEAR(values.front(), std::log(257.0), 0.1);  // it knows nothing yet
      double last = 0.0;
      for (std::size_t i = 70; i < 80; ++i) last += values[i] / 10;
      // The entropy of single bytes of this text is 3.1 nats: less takes context, or nearly.
      EXPECT_LT(last, 3.3) << preset << ' ' << compute;
    }
  }
}

TEST_F(Train, EveryOptimizerAndScheduleRuns) {
  write_config("a.toml", "gpt2-tiny");
  const std::vector<std::pair<std::string, std::string>> optimizers = {
      {"sgd", "0.3"},      {"momentum", "0.1"},  {"nesterov", "0.1"},
      {"adagrad", "0.02"}, {"rmsprop", "0.002"}, {"adam", "3e-3"}};
  for (const auto& [name, lr] : optimizers) {
    succeed({"train", "a.toml", "-s", "optimizer.name=" + name, "-s", "optimizer.lr=" + lr, "-s",
             "output.dir=" + name, "-s", "train.steps=40"});
    EXPECT_LT(losses(name).back(), losses(name).front() - 0.5) << name;
  }
  for (const std::string schedule : {"constant", "cosine", "linear", "wsd"}) {
    succeed({"train", "a.toml", "-s", "optimizer.schedule=" + schedule, "-s", "output.dir=" + schedule, "-s",
             "optimizer.min_lr=1e-4"});
    const auto lines = metrics(schedule);
    EXPECT_LT(lines[0]["lr"], lines[3]["lr"]) << schedule;  // warm-up
    EXPECT_EQ(lines[4]["lr"] == lines[18]["lr"], schedule == "constant") << schedule;
  }
}

TEST_F(Train, ASecondRunIntoTheSameFolderMovesTheFirstAside) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml"});
  const std::string metrics_of_first = read("run/metrics.jsonl");
  const std::string weights_of_first = read("run/checkpoints/step-00000020/model.safetensors");

  const Outcome second = succeed({"train", "a.toml", "-s", "train.seed=2"});
  expect_contains(second.err, {"run held another run", "run.1", "--resume"});
  EXPECT_EQ(read("run.1/metrics.jsonl"), metrics_of_first);
  EXPECT_EQ(read("run.1/checkpoints/step-00000020/model.safetensors"), weights_of_first);
  EXPECT_NE(read("run/checkpoints/step-00000020/model.safetensors"), weights_of_first);

  const std::string metrics_of_second = read("run/metrics.jsonl");
  expect_contains(succeed({"train", "a.toml", "-s", "output.dir=run/"}).err, {"run.2"});
  EXPECT_EQ(read("run.1/metrics.jsonl"), metrics_of_first);
  EXPECT_EQ(read("run.2/metrics.jsonl"), metrics_of_second);
}

TEST_F(Train, AFolderThatHoldsNoRunIsKept) {
  write_config("a.toml", "gpt2-tiny");
  fs::create_directory(path("run"));
  write("run/notes.txt", "mine");
  succeed({"train", "a.toml"});
  EXPECT_EQ(read("run/notes.txt"), "mine");
  EXPECT_FALSE(exists("run.1"));
}

TEST_F(Train, CheckpointsElsewhereAreNotMixedWithThoseOfAnotherRun) {
  write_config("a.toml", "gpt2-tiny");
  const Arguments elsewhere = set({"checkpoint.dir=saved"});
  succeed(Arguments{"train", "a.toml"} + elsewhere);
  const std::string metrics_before = read("run/metrics.jsonl");
  const Outcome second = run(Arguments{"train", "a.toml"} + elsewhere);
  EXPECT_EQ(second.status, 2) << second;
  expect_contains(second.err, {"checkpoint.dir", "saved", "--resume"});
  EXPECT_EQ(read("run/metrics.jsonl"), metrics_before);  // and nothing was moved
  EXPECT_FALSE(exists("run.1"));
}

// The first lines say what a person looks for, before the first step.
TEST_F(Train, BeginsWithWhatItTrains) {
  write_config("a.toml", "llama-tiny");
  const Outcome outcome =
      succeed({"train", "a.toml", "-s", "data.valid=text.txt", "-s", "train.eval_tokens=1000", "-s",
               "train.steps=500", "--stop-at-step", "2", "-s", "train.seed=7", "--ranks", "2"});
  const auto at = [&](std::string_view text) { return outcome.err.find(text); };
  // 11,358 bytes and the end of the document are 11,359 tokens: (11,359 - 1) / 32 = 354 sequences.
  // 500 steps of 4 x 32 tokens; 2,000 of 354 sequences are 5.65 epochs.
  expect_contains(
      outcome.err,
      {"llama-tiny: 115,072 parameters", "vocabulary 257", "text.txt: 11,359 tokens, 354 sequences of 32",
       "text.txt: the first 1,024 of 11,328 tokens", "steps 1 to 500 of 128 tokens: 64,000 tokens, 5.65 epochs",
       "4 sequences of 32 tokens = 1 micro-step x 2 replicas x micro-batch 2", "dp=2: 2 ranks x 1 thread, shm",
       "fp32", "seed 7"});
  EXPECT_LT(at("precision  fp32"), at("step 1/500"));
  EXPECT_EQ(at("MFU"), std::string::npos);
  std::istringstream lines(outcome.err);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  const Outcome resumed = succeed({"train", "run", "--resume", "--stop-at-step", "3", "--ranks", "1"});
  expect_contains(resumed.err, {"steps 3 to 500 of 128 tokens: 63,744 tokens, 0.0226 to 5.65 epochs"});
}

TEST_F(Train, MeasuresThePeakOnlyWhereARunLasts) {
  write_config("a.toml", "gpt2-tiny");
  const Arguments train = {"train", "a.toml", "-s", "machine.peak_tflops=measure"};
  const Outcome quick = succeed(train + Arguments{"--stop-at-step", "9", "-s", "train.steps=1000000000"});
  EXPECT_FALSE(exists("cache"));
  EXPECT_EQ(quick.err.find("MFU"), std::string::npos) << quick;
  for (const nlohmann::json& line : metrics("run")) EXPECT_TRUE(line["mfu"].is_null());
  EXPECT_TRUE(read_json("run/summary.json")["peak_tflops"].is_null());
  for (const std::string ranks : {"2", "1"}) {
    fs::remove_all(path("cache"));
    Process process(
        MESHTRAIN_BINARY,
        train + Arguments{"--ranks", ranks, "-s", "train.steps=1000000000", "-s", "output.dir=long" + ranks},
        dir_);
    ASSERT_TRUE(process.wait_until([&] { return metrics("long" + ranks).size() >= 4; }));
    process.signal(SIGINT);
    const Outcome outcome = process.finish();
    EXPECT_EQ(outcome.status, 0) << outcome;
    expect_contains(outcome.err, {"MFU is relative to the peak measured now"});
    const std::vector<nlohmann::json> lines = metrics("long" + ranks);
    EXPECT_TRUE(lines[0]["mfu"].is_null());
    EXPECT_GT(lines[3]["mfu"], 0.0);
    EXPECT_GT(read_json("long" + ranks + "/summary.json")["peak_tflops"], 0.0);
  }
  EXPECT_TRUE(exists("cache/meshtrain/peaks.json"));
  // A later run knows it from the start.
  const Outcome later =
      succeed(train + Arguments{"-s", "train.steps=3", "-s", "optimizer.warmup=0", "-s", "output.dir=later"});
  expect_contains(later.err, {"; peak "});
  for (const nlohmann::json& line : metrics("later")) {
    EXPECT_FALSE(line["mfu"].is_null()) << line;
  }
}

// In fp16 each step says what its loss was scaled by: halved at an overflow, which here comes first.
TEST_F(Train, MetricsHaveTheLossScaleOfFp16) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml", "-s", "precision.compute=fp16", "-s", "precision.loss_scale=33554432.0", "-s",
           "precision.loss_scale_window=4"});
  double scale = 33554432.0;
  std::int64_t good = 0;
  std::int64_t skipped = 0;
  for (const nlohmann::json& line : metrics("run")) {
    EXPECT_EQ(line["loss_scale"], scale);
    if (line["skipped"].get<bool>()) {
      scale /= 2.0;
      good = 0;
      ++skipped;
    } else if (++good == 4) {
      scale *= 2.0;
      good = 0;
    }
  }
  EXPECT_GT(skipped, 0);
  for (const std::string compute : {"fp32", "bf16"}) {
    succeed({"train", "a.toml", "-s", "precision.compute=" + compute, "-s", "train.steps=2", "-s",
             "optimizer.warmup=0", "-s", "output.dir=" + compute});
    EXPECT_FALSE(metrics(compute).front().contains("loss_scale"));
  }
}

// The same tokens in the same order, whatever the micro-batch, the mesh and the command. (With one micro-step a
// step the weights do not depend on dp either.)
TEST_F(Train, EvaluationIsTheSameForEveryMeshMicroBatchAndCommand) {
  write_config("a.toml", "llama-tiny");
  write("valid.txt", read("text.txt").substr(2000, 3001));
  const auto evaluation = [&](const std::string& folder, const Arguments& more) {
    succeed(Arguments{"train", "a.toml", "-s", "data.valid=valid.txt", "-s", "train.eval_tokens=2000", "-s",
                      "numerics.reduction=tree", "-s", "train.steps=2", "-s", "optimizer.warmup=0", "-s",
                      "train.global_batch=8", "-s", "output.dir=" + folder} +
            more);
    const nlohmann::json line = metrics(folder).back();
    const nlohmann::json again = succeed_with_json({"eval", folder, "--json"});
    EXPECT_EQ(line["eval_tokens"], 63 * 32) << folder;  // 2000 / 32 = 62.5
    EXPECT_EQ(again["tokens"], line["eval_tokens"]);
    EXPECT_EQ(again["nats_per_token"], line["eval_loss"]) << folder;
    EXPECT_EQ(again["bits_per_byte"], line["eval_bits_per_byte"]) << folder;
    EXPECT_EQ(read_json(folder + "/summary.json")["eval_tokens"], line["eval_tokens"]);
    return line["eval_loss"].get<double>();
  };
  const double one = evaluation("one", {});
  EXPECT_EQ(evaluation("dp", {"--ranks", "4", "-s", "mesh.zero=3"}), one);
  EXPECT_EQ(evaluation("pp", {"--ranks", "2", "-s", "mesh.pp=2"}), one);
  // Weights that differ in rounding only.
  for (const std::string micro_batch : {"1", "4", "8"}) {
    EXPECT_NEAR(evaluation("m" + micro_batch, {"-s", "train.micro_batch=" + micro_batch}), one, 1e-6)
        << micro_batch;
  }
  // The same weights to the bit.
  for (const std::string micro_batch : {"1", "2", "4", "8"}) {
    EXPECT_EQ(succeed_with_json(
                  {"eval", "one", "--json", "-s", "train.micro_batch=" + micro_batch})["nats_per_token"],
              one);
  }
}

// Stopped by a signal is another end than done, for schedulers; stopped where the user wished is not.
TEST_F(Train, AnInterruptedRunEndsWithTheStatusAskedFor) {
  write_config("a.toml", "gpt2-tiny");
  for (const Arguments& ranks :
       {Arguments{}, Arguments{"--ranks", "2"}, Arguments{"--ranks", "2", "--ranks-as", "threads"},
        Arguments{"--ranks", "2", "--max-restarts", "1"}}) {
    for (const auto& [asked, status] : {std::pair("75", 75), std::pair("", 0)}) {
      SCOPED_TRACE(testing::PrintToString(ranks) + asked);
      fs::remove_all(path("run"));
      Arguments train = Arguments{"train", "a.toml", "-s", "train.steps=1000000"} + ranks;
      if (status != 0) train = train + Arguments{"--interrupted-status", asked};
      Process process(MESHTRAIN_BINARY, train, dir_);
      ASSERT_TRUE(process.wait_until([&] { return metrics("run").size() >= 2; }));
      process.signal(SIGTERM);
      const Outcome outcome = process.finish();
      EXPECT_EQ(outcome.status, status) << outcome;
      expect_contains(outcome.out,
                      {"of 1000000: the run is not finished. Saved in run/checkpoints/step-", "--resume`"});
    }
  }
  succeed({"train", "a.toml", "--interrupted-status", "75", "-s", "output.dir=whole"});
  succeed({"train", "a.toml", "--interrupted-status", "75", "-s", "output.dir=part", "--stop-at-step", "3"});
  for (const std::string bad : {"-1", "256", "x", ""}) {
    EXPECT_EQ(run({"train", "a.toml", "--interrupted-status", bad}).status, 2) << bad;
  }
}

// An infinite or huge scale makes every gradient overflow.
TEST_F(Train, ARunWhoseEveryStepWasSkippedFails) {
  write_config("a.toml", "llama-tiny");
  const Arguments train = {
      "train", "a.toml", "-s", "precision.compute=fp16", "-s", "precision.loss_scale=1e25"};
  for (const std::string ranks : {"1", "2"}) {
    const Outcome outcome = run(train + Arguments{"--ranks", ranks, "-s", "output.dir=run" + ranks});
    EXPECT_EQ(outcome.status, 1) << outcome;
    EXPECT_EQ(outcome.out, "");
    expect_contains(outcome.err,
                    {"nothing was trained", "all 20 steps", "fp16", "precision.loss_scale", "norm nan"});
    EXPECT_EQ(outcome.err.find("-nan"), std::string::npos);
  }
  // Where it only begins so, all is well: some 70 halvings are enough.
  succeed(train + Arguments{"-s", "train.steps=120", "-s", "output.dir=longer"});
}

TEST_F(Train, DataFromADeviceIsRefused) {
  write_config("a.toml", "llama-tiny");
  for (const std::string device : {"/dev/zero", "/dev/urandom", "/dev/full"}) {
    expect_refused({"train", "a.toml", "-s", "data.train=" + device}, {"data.train", device, "is a device"});
    expect_refused({"train", "a.toml", "-s", "data.valid=" + device}, {"data.valid", device, "is a device"});
    expect_refused({"tokenize", device, "--out", "out", "--tokenizer", "bytes"}, {device, "is a device"});
    expect_refused({"train", "a.toml", "-s", "data.tokenizer=sentencepiece:" + device},
                   {device, "is a device"});
  }
}

}  // namespace
}  // namespace meshtrain
