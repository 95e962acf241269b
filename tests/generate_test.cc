// `meshtrain generate` and `meshtrain eval` on a model that the program has trained.
#include <gtest/gtest.h>

#include <cmath>

#include "program.h"

namespace meshtrain {
namespace {

// A model trained for a tenth of a second, in run/, with checkpoints of steps 30 and 60.
class Trained : public ProgramTest {
 protected:
  Trained() {
    write_config("a.toml", "llama-tiny");
    write("valid.txt", read("text.txt").substr(3000, 2000));
    succeed({"train", "a.toml", "-s", "data.valid=valid.txt", "-s", "train.steps=60", "-s",
             "checkpoint.every=30", "-s", "train.eval_every=30"});
  }

  std::string generate(const Arguments& more) const {
    return succeed(Arguments{"generate", "run", "--prompt", "The License", "--tokens", "40"} + more).out;
  }
  nlohmann::json eval(const Arguments& more) const {
    return succeed_with_json(Arguments{"eval", "--json"} + more);
  }
};

TEST_F(Trained, GeneratesTheSameTextForTheSameSeed) {
  const std::string one = generate({"--seed", "1"});
  EXPECT_TRUE(one.starts_with("The License")) << one;
  EXPECT_EQ(one.size(), std::string("The License").size() + 40 + 1)
      << one;  // a byte a token, and the line's end
  EXPECT_EQ(generate({"--seed", "1"}), one);
  EXPECT_EQ(generate({"--seed", "1", "-s", "machine.threads=2"}), one);
  EXPECT_NE(generate({"--seed", "2"}), one);
  // A draw depends on the seed and its own index: a shorter text is the start of a longer one.
  const std::string longer = succeed({"generate", "run", "--prompt", "The License", "--tokens", "60"}).out;
  EXPECT_EQ(longer.substr(0, one.size() - 1), one.substr(0, one.size() - 1));
}

TEST_F(Trained, WithoutTemperatureOrChoiceItIsGreedy) {
  const std::string greedy = generate({"--temperature", "0"});
  EXPECT_EQ(generate({"--temperature", "0", "--seed", "5"}), greedy);
  EXPECT_EQ(generate({"--top-k", "1", "--temperature", "1.5"}), greedy);
  EXPECT_EQ(generate({"--top-p", "1e-9"}), greedy);
  EXPECT_NE(generate({"--temperature", "1.5"}), greedy);
}

TEST_F(Trained, ThePromptMayBeLongerThanTheWindowOrAbsent) {
  const std::string prompt = read("text.txt").substr(0, 1000);  // seq_len is 32
  const std::string text = succeed({"generate", "run", "--prompt", prompt, "--tokens", "100"}).out;
  EXPECT_EQ(text.size(), 1101U);
  EXPECT_TRUE(text.starts_with(prompt));
  EXPECT_FALSE(succeed({"generate", "run", "--tokens", "30"}).out.empty());
  EXPECT_EQ(succeed({"generate", "run", "--prompt", "x", "--tokens", "0"}).out, "x\n");
}

TEST_F(Trained, MistakesAreRefused) {
  const std::vector<std::pair<Arguments, std::string>> mistakes = {
      {{"--temperature", "-1"}, "--temperature"},
      {{"--temperature", "nan"}, "--temperature"},
      {{"--top-k", "-2"}, "--top-k"},
      {{"--top-p", "0"}, "--top-p"},
      {{"--top-p", "1.5"}, "--top-p"},
      {{"--tokens", "-1"}, "--tokens"},
      {{"--seed", "-1"}, "--seed"},
      {{"--checkpoint", "nowhere"}, "nowhere"},
      {{"-s", "model.layers=3"}, "layers"},
  };
  for (const auto& [arguments, part] : mistakes) {
    const Outcome outcome = run(Arguments{"generate", "run"} + arguments);
    EXPECT_EQ(outcome.status, 2) << testing::PrintToString(arguments) << outcome;
    expect_contains(outcome.err, {part});
    EXPECT_EQ(outcome.out, "");
  }
  for (const std::string command : {"generate", "eval"}) {
    for (const std::string place : {"nowhere", "run/checkpoints/step-00000031"}) {
      const Outcome outcome = run({command, place});
      EXPECT_EQ(outcome.status, 2) << outcome;
      expect_contains(outcome.err, {place, "checkpoint"});
    }
  }
}

TEST_F(Trained, EvalIsTheEvaluationOfTheRun) {
  for (const std::string step : {"30", "60"}) {
    const nlohmann::json json = eval({"run", "--checkpoint", "run/checkpoints/step-000000" + step});
    bool found = false;
    for (const nlohmann::json& line : metrics("run")) {
      if (!line.contains("eval_loss") || line["step"] != std::stoi(step)) continue;
      found = true;
      EXPECT_EQ(json["nats_per_token"], line["eval_loss"]);
      EXPECT_EQ(json["bits_per_byte"], line["eval_bits_per_byte"]);
    }
    EXPECT_TRUE(found);
    EXPECT_EQ(json["step"], std::stoi(step));
    EXPECT_EQ(json["data"], "valid.txt");
    // 2000 bytes and the end of the document are 62 samples of 32 targets and 17 tokens that fill none.
    EXPECT_EQ(json["tokens"], 62 * 32);
    EXPECT_EQ(json["bytes"], 62 * 32);
  }
}

TEST_F(Trained, AConfigARunFolderAndACheckpointNameTheSameModel) {
  const nlohmann::json from_run = eval({"run"});
  EXPECT_EQ(from_run["step"], 60);
  EXPECT_EQ(eval({"a.toml", "-s", "data.valid=valid.txt"}), from_run);
  EXPECT_EQ(eval({"run/config.toml"}), from_run);
  EXPECT_EQ(eval({"run/checkpoints"}), from_run);
  EXPECT_EQ(eval({"run/checkpoints/step-00000060"}), from_run);
  fs::rename(path("run"), path("moved"));
  const nlohmann::json moved = eval({"moved"});
  EXPECT_EQ(moved["nats_per_token"], from_run["nats_per_token"]);
}

TEST_F(Trained, EvalTakesOtherDataAndParts) {
  for (const std::string micro_batch : {"1", "2", "4"}) {
    const nlohmann::json part = eval({"run", "--tokens", "150", "-s", "train.micro_batch=" + micro_batch});
    EXPECT_EQ(part["tokens"], 5 * 32);
    EXPECT_EQ(part["tokens_in_data"], 62 * 32);
    EXPECT_EQ(part, eval({"run", "-s", "train.eval_tokens=129"}));
  }
  EXPECT_EQ(eval({"run", "--tokens", "0", "-s", "train.eval_tokens=32"}), eval({"run"}));
  expect_contains(succeed({"eval", "run", "--tokens", "1"}).out, {"the first 32 of 1984 tokens"});
  EXPECT_EQ(eval({"run", "--data", "text.txt"})["data"], "text.txt");
  const Outcome text = succeed({"eval", "run"});
  expect_contains(text.out, {"step 60", "valid.txt", "nats/token", "bits/byte", ": 1984 tokens"});
}

TEST_F(Trained, EvalNeedsData) {
  const Outcome outcome = run({"eval", "a.toml"});
  EXPECT_EQ(outcome.status, 2) << outcome;
  expect_contains(outcome.err, {"data.valid", "--data"});
}

}  // namespace
}  // namespace meshtrain
