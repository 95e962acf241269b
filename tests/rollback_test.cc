// Bad steps: a run that meets one and goes back ends in the same bits as a run whose data never held it.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/piece.h"
#include "data/sampler.h"
#include "program.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kSeq = 16;
constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kSteps = 20;
constexpr std::int64_t kSamples = (kSteps + 4) * kBatch;
constexpr std::uint64_t kSeed = 3;

// Each begins with a newline, which is also the last target of the one before it: samples can change places.
std::string good_sample(std::int64_t number) {
  std::string sample = "\n";
  for (std::int64_t i = 1; i < kSeq; ++i) sample += static_cast<char>('a' + (number % 7 + i) % 8);
  return sample;
}
// Of a character that no good one has, over and over: all of its tokens pull the same way.
std::string bad_sample() {
  return "\n" + std::string(kSeq - 1, 'Z');
}

class Rollback : public ProgramTest {
 protected:
  Rollback() {
    write_corpus("clean.txt", {});
    write("a.toml", R"([model]
preset = "llama-tiny"
tie_embeddings = false
[data]
seq_len = 16
[train]
steps = 20
global_batch = 4
micro_batch = 1
seed = 3
on_bad_step = "rollback"
norm_spike = 2.0
norm_spike_window = 4
[optimizer]
lr = 3e-3
schedule = "constant"
[precision]
compute = "fp32"
[checkpoint]
every = 5
[output]
dir = "run"
[machine]
peak_tflops = "off"
threads = 1
)");
  }

  // Samples in the order in which they are trained on: bad ones where that many global batches lie before them,
  // good ones elsewhere, the same in every file.
  void write_corpus(const std::string& name, const std::vector<std::int64_t>& bad_batches) const {
    const Permutation place(kSamples, kSeed, 0);
    std::string text(static_cast<std::size_t>(kSamples * kSeq), ' ');
    std::int64_t good = 0;
    for (std::int64_t i = 0; i < kSamples; ++i) {
      const bool bad = std::count(bad_batches.begin(), bad_batches.end(), i / kBatch) > 0;
      text.replace(static_cast<std::size_t>(place(i) * kSeq), kSeq, bad ? bad_sample() : good_sample(good));
      good += bad ? 0 : 1;
    }
    write(name, text + "\n");
  }

  static Arguments train(const std::string& data, const std::string& folder,
                         const std::vector<std::string>& keys = {}) {
    return Arguments{"train", "a.toml"} + set({"data.train=" + data, "output.dir=" + folder}) + set(keys);
  }
  static Arguments on_ranks(const std::string& ranks) { return {"--ranks", ranks, "--ranks-as", "threads"}; }

  std::vector<nlohmann::json> rollbacks(const std::string& run_folder) const {
    std::vector<nlohmann::json> lines = metrics(run_folder);
    std::erase_if(lines, [](const nlohmann::json& line) { return !line.contains("rollback"); });
    return lines;
  }
  std::vector<nlohmann::json> bits_of_steps(const std::string& run_folder) const {
    std::vector<nlohmann::json> lines = bits_of_metrics(run_folder);
    std::erase_if(lines, [](const nlohmann::json& line) { return line.contains("rollback"); });
    return lines;
  }

  void expect_same_checkpoint(const std::string& run_folder, const std::string& expected) const {
    const std::string place = "/checkpoints/" + checkpoint_name(kSteps);
    EXPECT_EQ(tensors_of(run_folder + place), tensors_of(expected + place));
  }
  void expect_same_end(const std::string& run_folder, const std::string& expected) const {
    EXPECT_EQ(bits_of_steps(run_folder), bits_of_steps(expected));
    expect_same_checkpoint(run_folder, expected);
    EXPECT_EQ(read_json(run_folder + "/summary.json")["tokens"], kSteps * kBatch * kSeq);
  }
};

TEST_F(Rollback, ASpikeIsLeftOutOnEveryMesh) {
  write_corpus("spike.txt", {12});  // step 13
  const std::vector<std::vector<std::string>> meshes = {
      {},
      {"mesh.dp=2", "checkpoint.async=true"},
      {"mesh.dp=2", "mesh.zero=3"},
      {"mesh.tp=2"},
      {"mesh.pp=2", "checkpoint.async=true"},
      {"mesh.dp=2", "mesh.pp=2", "mesh.zero=2", "mesh.schedule=zb-h1", "precision.compute=bf16"}};
  for (const std::vector<std::string>& mesh : meshes) {
    SCOPED_TRACE(testing::PrintToString(mesh));
    const Arguments ranks = mesh.empty() ? Arguments{} : on_ranks(mesh.size() > 3 ? "4" : "2");
    succeed(train("clean.txt", "clean", mesh) + ranks);
    const Outcome outcome = succeed(train("spike.txt", "run", mesh) + ranks);
    expect_same_end("run", "clean");
    EXPECT_TRUE(rollbacks("clean").empty());
    const auto events = rollbacks("run");
    ASSERT_EQ(events.size(), 1U);
    EXPECT_EQ(events[0]["step"], 10);
    const nlohmann::json& event = events[0]["rollback"];
    EXPECT_EQ(event["bad_step"], 13);
    EXPECT_EQ(event["reason"], "gradient norm spike");
    EXPECT_EQ(event["left_out"], nlohmann::json::parse("[[48, 4]]"));
    // Twice the mean of the four norms before, which were cut and done again with the same bits.
    double sum = 0.0;
    for (std::size_t step = 9; step <= 12; ++step)
      sum += bits_of_steps("run")[step - 1]["grad_norm"].get<double>();
    EXPECT_EQ(event["threshold"].get<double>(), 2.0 * (sum / 4.0));
    EXPECT_GT(event["grad_norm"], event["threshold"]);
    expect_contains(outcome.err, {"step 13: gradient norm spike", checkpoint_name(10), "samples 48 to 51"});
    EXPECT_EQ(read_json("run/summary.json")["rollbacks"], 1);
    EXPECT_EQ(read_json("clean/summary.json")["rollbacks"], 0);
    fs::remove_all(path("clean"));
    fs::remove_all(path("run"));
  }
}

// Optimizer state and the loss scale begin anew.
TEST_F(Rollback, BeforeTheFirstCheckpointItStartsOver) {
  write_corpus("spike.txt", {15});
  for (const std::string optimizer : {"adamw", "momentum"}) {
    for (const std::string compute : {"fp32", "fp16"}) {
      SCOPED_TRACE(optimizer + " " + compute);
      const std::vector<std::string> keys = {"checkpoint.every=0", "optimizer.name=" + optimizer,
                                             "precision.compute=" + compute, "precision.loss_scale=4096",
                                             "precision.loss_scale_window=4"};
      succeed(train("clean.txt", "clean", keys));
      const Outcome outcome = succeed(train("spike.txt", "run", keys));
      expect_contains(outcome.err, {"step 16", "back to the initial weights"});
      ASSERT_EQ(rollbacks("run").size(), 1U);
      EXPECT_EQ(rollbacks("run")[0]["step"], 0);
      expect_same_end("run", "clean");
      const auto state_of = [&](const std::string& folder) {
        const nlohmann::json state =
            Checkpoint(path(folder + "/checkpoints/" + checkpoint_name(kSteps))).state();
        return state.value("loss_scaler", nlohmann::json());
      };
      // Doubled after every fourth of the 20 steps, not of the 35 that were done.
      const nlohmann::json scale = {{"scale", 4096.0 * 32.0}, {"good_steps", 0}};
      EXPECT_EQ(state_of("run"), compute == "fp16" ? scale : nlohmann::json());
      fs::remove_all(path("clean"));
      fs::remove_all(path("run"));
    }
  }
}

// Two in one interval, side by side: what takes the place of the first is bad as well. And evaluations.
TEST_F(Rollback, SeveralBadStepsAreLeftOut) {
  write_corpus("spikes.txt", {7, 12, 13, 16});
  const std::vector<std::string> keys = {"data.valid=clean.txt", "train.eval_every=2", "train.eval_tokens=128"};
  succeed(train("clean.txt", "clean", keys));
  succeed(train("spikes.txt", "run", keys));
  expect_same_end("run", "clean");
  EXPECT_EQ(read_json("run/summary.json")["eval_loss"], read_json("clean/summary.json")["eval_loss"]);
  std::vector<std::string> seen;
  for (const nlohmann::json& line : rollbacks("run")) {
    seen.push_back(line["step"].dump() + ' ' + line["rollback"]["bad_step"].dump() + ' ' +
                   line["rollback"]["left_out"].dump());
  }
  EXPECT_EQ(seen,
            (std::vector<std::string>{"5 8 [[28,4]]", "10 12 [[48,4]]", "10 12 [[52,4]]", "10 14 [[64,4]]"}));
  EXPECT_EQ(read_json("run/summary.json")["rollbacks"], 4);
}

TEST_F(Rollback, AKillBeforeTheNextCheckpointEndsInTheSameBits) {
  write_corpus("spikes.txt", {6, 14});
  write_text("text.txt");
  const std::vector<std::string> keys = {"data.valid=text.txt", "train.eval_every=5", "train.eval_tokens=128"};
  succeed(train("clean.txt", "clean", keys));
  succeed(train("spikes.txt", "whole", keys));
  expect_same_end("whole", "clean");
  // In the interval that is done again: these steps come after the first rollback, and after the second.
  for (const auto& [step, events] : {std::pair{"8", 1U}, std::pair{"15", 2U}}) {
    Process process(MESHTRAIN_BINARY, train("spikes.txt", "run", keys), dir_,
                    pausing_at("micro-step:" + std::string(step) + ":0"));
    ASSERT_TRUE(wait_for_pause(process));
    EXPECT_EQ(rollbacks("run").size(), events);
    process.signal(SIGKILL);
    EXPECT_EQ(process.finish().status, -SIGKILL);
    let_go();
    succeed(train("spikes.txt", "run", keys) + Arguments{"--resume"});
    EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("whole"));
    expect_same_end("run", "clean");
    EXPECT_EQ(read_json("run/summary.json")["rollbacks"], 2);
    fs::remove_all(path("run"));
  }
}

// The norms before a stop count after it, and what was left out stays out, also on another mesh.
TEST_F(Rollback, AStopChangesNoDecision) {
  write_corpus("spike.txt", {12});
  const std::vector<std::string> tree = {"numerics.reduction=tree"};
  succeed(train("clean.txt", "clean", tree));
  const std::vector<std::pair<std::vector<std::string>, Arguments>> meshes = {
      {{}, {}}, {{"mesh.dp=2", "mesh.zero=3"}, on_ranks("2")}, {{"mesh.pp=2"}, on_ranks("2")}};
  for (const std::string at : {"11", "12", "13", "16"}) {
    for (const auto& [mesh, ranks] : meshes) {
      SCOPED_TRACE(at + ' ' + testing::PrintToString(mesh));
      succeed(train("spike.txt", "run", tree) + set(mesh) + ranks + Arguments{"--stop-at-step", at});
      succeed(train("spike.txt", "run", tree) + Arguments{"--resume"});
      expect_same_end("run", "clean");
      ASSERT_EQ(rollbacks("run").size(), 1U);
      EXPECT_EQ(rollbacks("run")[0]["step"], at < "13" ? std::stoi(at) : 10);
      EXPECT_EQ(read_json("run/summary.json")["rollbacks"], 1);
      fs::remove_all(path("run"));
    }
  }
}

TEST_F(Rollback, StopsWhenToldToAndWhenThereAreTooMany) {
  write_corpus("spikes.txt", {7, 12});
  const Outcome stopped = run(train("spikes.txt", "run", {"train.on_bad_step=stop"}));
  EXPECT_EQ(stopped.status, 1) << stopped;
  expect_contains(stopped.err, {"step 8: the gradient norm (", "train.norm_spike = 2", "last 4 steps",
                                "was not applied", checkpoint_name(5)});
  EXPECT_EQ(metrics("run").size(), 7U);

  const Outcome too_many = run(train("spikes.txt", "few", {"train.max_rollbacks=1"}));
  EXPECT_EQ(too_many.status, 1) << too_many;
  expect_contains(too_many.err, {"step 12: the gradient norm (", "rolled back 1 time before",
                                 "train.max_rollbacks = 1", checkpoint_name(10)});
  // It counts the run's, not the process's.
  const Outcome again = run(train("spikes.txt", "few", {"train.max_rollbacks=1"}) + Arguments{"--resume"});
  EXPECT_EQ(again.status, 1) << again;
  expect_contains(again.err, {"rolled back 1 time before"});
  succeed(train("spikes.txt", "few", {"train.max_rollbacks=2"}) + Arguments{"--resume"});
  succeed(train("clean.txt", "clean"));
  expect_same_end("few", "clean");

  // Off: trained on like all other data.
  succeed(train("spikes.txt", "off", {"train.norm_spike=0"}));
  EXPECT_TRUE(rollbacks("off").empty());
}

class RollbackOfNan : public Rollback {
 protected:
  // Rewrites a checkpoint so that the embedding of 'Z', which good samples lack, is not a number.
  void poison(const std::string& from, const std::string& to) const {
    const Checkpoint checkpoint(path(from));
    CheckpointContents contents;
    contents.step = checkpoint.step();
    contents.state = checkpoint.state();
    std::map<std::string, std::vector<float>> tensors;
    for (const auto& [name, tensor] : checkpoint.manifest().contents.tensors) {
      std::vector<float>& values = tensors[name];
      values.resize(static_cast<std::size_t>(tensor.shape.numel()));
      checkpoint.read(name, tensor.shape, 0, values);
      if (name == "embed.tokens") {
        const auto row = values.begin() + 'Z' * tensor.shape[1];
        std::fill(row, row + tensor.shape[1], std::numeric_limits<float>::quiet_NaN());
      }
      const bool state = name.ends_with(".m") || name.ends_with(".v");
      (state ? contents.optimizer : contents.model)
          .push_back(
              {.name = name, .shape = tensor.shape, .range = whole_range(tensor.shape), .data = values.data()});
    }
    fs::create_directories(path(to).parent_path());
    write_checkpoint(path(to), contents);
  }
};

TEST_F(RollbackOfNan, ALossThatIsNotFiniteIsLeftOut) {
  write_corpus("nan.txt", {4, 12});
  succeed(train("clean.txt", "start") + Arguments{"--stop-at-step", "3"});
  poison("start/checkpoints/" + checkpoint_name(3), "poisoned/" + checkpoint_name(3));
  const std::vector<std::vector<std::string>> meshes = {
      {}, {"mesh.dp=2"}, {"mesh.dp=2", "mesh.zero=3"}, {"mesh.tp=2"}, {"mesh.pp=2"}};
  for (const std::vector<std::string>& mesh : meshes) {
    SCOPED_TRACE(testing::PrintToString(mesh));
    const Arguments from = (mesh.empty() ? Arguments{} : on_ranks("2")) +
                           Arguments{"--resume-from", "poisoned", "-s", "train.norm_spike=0"};
    succeed(train("clean.txt", "clean", mesh) + from);
    const Outcome outcome = succeed(train("nan.txt", "run", mesh) + from);
    expect_same_end("run", "clean");
    const auto events = rollbacks("run");
    ASSERT_EQ(events.size(), 2U);
    // At first back to what it started from, then to a checkpoint of its own.
    EXPECT_EQ(events[0]["step"], 3);
    EXPECT_EQ(events[1]["step"], 10);
    for (const nlohmann::json& event : events) {
      EXPECT_EQ(event["rollback"]["reason"], "loss not finite");
      EXPECT_TRUE(event["rollback"]["loss"].is_null());
      EXPECT_TRUE(event["rollback"]["threshold"].is_null());
    }
    expect_contains(outcome.err, {"step 5: loss not finite", "back to poisoned/" + checkpoint_name(3),
                                  "step 12: loss not finite", "run/checkpoints/" + checkpoint_name(10)});
    const Outcome stopped = run(train("nan.txt", "stopped", mesh) + from + set({"train.on_bad_step=stop"}));
    EXPECT_EQ(stopped.status, 1) << stopped;
    expect_contains(stopped.err, {"step 5: the loss (nan) or the gradient norm (", "is not finite"});
    for (const char* folder : {"clean", "run", "stopped"}) fs::remove_all(path(folder));
  }
}

// fp16 skips such a step by itself, as an overflow.
TEST_F(RollbackOfNan, InFp16ItIsASkippedStep) {
  write_corpus("nan.txt", {7});
  succeed(train("clean.txt", "start", {"precision.compute=fp16"}) + Arguments{"--stop-at-step", "3"});
  poison("start/checkpoints/" + checkpoint_name(3), "poisoned/" + checkpoint_name(3));
  succeed(train("nan.txt", "run", {"precision.compute=fp16", "train.norm_spike=0"}) +
          Arguments{"--resume-from", "poisoned"});
  EXPECT_TRUE(rollbacks("run").empty());
  EXPECT_EQ(metrics("run").at(4)["skipped"], true);
  EXPECT_EQ(metrics("run").at(5)["skipped"], false);
}

TEST_F(RollbackOfNan, ADivergedRunEndsAfterTheLastRollback) {
  const Outcome outcome = run(train("clean.txt", "run", {"optimizer.lr=1e30", "train.max_rollbacks=3"}));
  EXPECT_EQ(outcome.status, 1) << outcome;
  expect_contains(outcome.err, {"is not finite", "rolled back 3 times before"});
  EXPECT_EQ(rollbacks("run").size(), 3U);
}

// It waits after the checkpoint of step 10 while something is done to the checkpoints.
class RollbackAfterDamage : public Rollback {
 protected:
  RollbackAfterDamage() { write_corpus("spike.txt", {12}); }
  Outcome train_and_damage(const Arguments& words, const std::function<void()>& damage) const {
    Process process(MESHTRAIN_BINARY, train("spike.txt", "run") + words, dir_, pausing_at("micro-step:11:0"));
    EXPECT_TRUE(wait_for_pause(process));
    damage();
    let_go();
    return process.finish();
  }
};

TEST_F(RollbackAfterDamage, ADamagedCheckpointIsPassedOver) {
  succeed(train("clean.txt", "clean"));
  const std::string newest = "run/checkpoints/" + checkpoint_name(10);
  const Outcome outcome = train_and_damage({}, [&] {
    const std::string shard = newest + "/" + Checkpoint(path(newest)).manifest().contents.shards.begin()->first;
    std::string bytes = read(shard);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write(shard, bytes);
  });
  EXPECT_EQ(outcome.status, 0) << outcome;
  expect_contains(outcome.err, {"It is passed over", "back to run/checkpoints/" + checkpoint_name(5)});
  expect_same_end("run", "clean");
  EXPECT_EQ(rollbacks("run").at(0)["step"], 5);
}

TEST_F(RollbackAfterDamage, WhatItStartedFromIsNamedWhenItIsGone) {
  succeed(train("spike.txt", "start") + Arguments{"--stop-at-step", "6"});
  const Outcome outcome = train_and_damage({"--resume-from", "start", "-s", "checkpoint.every=0"},
                                           [&] { fs::remove_all(path("start")); });
  EXPECT_EQ(outcome.status, 1) << outcome;
  expect_contains(outcome.err, {"going back because of step 13 (gradient norm spike)", "start/checkpoints"});
}

}  // namespace
}  // namespace meshtrain
