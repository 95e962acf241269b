// Going on after a stop of any kind: the run ends in the same bits as one that was never stopped.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/safetensors.h"
#include "program.h"

namespace meshtrain {
namespace {

std::string checkpoint_in(const std::string& run_folder, std::int64_t step) {
  return run_folder + "/checkpoints/" + checkpoint_name(step);
}

class Resume : public ProgramTest {
 protected:
  void expect_same_checkpoint(const std::string& a, const std::string& b) const {
    EXPECT_EQ(tensors_of(a), tensors_of(b)) << a << " and " << b << " differ";
  }

  void expect_same_end(const std::string& run_folder, const std::string& whole, std::int64_t steps) const {
    EXPECT_EQ(bits_of_metrics(run_folder), bits_of_metrics(whole));
    expect_same_checkpoint(checkpoint_in(run_folder, steps), checkpoint_in(whole, steps));
  }

  // Steps that `run_folder` has recorded.
  std::size_t steps_of(const std::string& run_folder) const { return metrics(run_folder).size(); }

  // A run of two micro-steps and more a step; its uninterrupted twin is in whole/.
  Arguments train_more() const {
    return {"train", "a.toml", "-s", "train.steps=30", "-s", "train.global_batch=8"};
  }
};

TEST_F(Resume, TenStepsAndTenAreTwentyToTheBit) {
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    write_config("a.toml", preset);
    for (const std::string compute : {"fp32", "bf16", "fp16"}) {
      SCOPED_TRACE(preset + " " + compute);
      // For fp16: the scale overflows at first, and a window ends on either side of the stop.
      const Arguments train =
          Arguments{"train", "a.toml"} + set({"precision.compute=" + compute, "precision.loss_scale=33554432.0",
                                              "precision.loss_scale_window=4", "data.valid=text.txt",
                                              "train.eval_every=5", "train.eval_tokens=128"});
      succeed(train + set({"output.dir=whole"}));
      const Outcome first = succeed(train + Arguments{"--stop-at-step", "10"});
      expect_contains(first.out, {"stopped after step 10 of 20", "meshtrain train run --resume"});
      EXPECT_EQ(metrics("run").back()["step"], 10);
      const Outcome second = succeed(train + Arguments{"--resume"});
      expect_contains(second.err, {"resuming from", checkpoint_name(10), "step 11"});
      expect_same_end("run", "whole", 20);
      EXPECT_EQ(read_json("run/summary.json")["loss"], read_json("whole/summary.json")["loss"]);
    }
  }
}

TEST_F(Resume, TheRunFolderIsEnoughToGoOn) {
  write_config("a.toml", "llama-tiny");
  const Arguments said = set({"optimizer.name=nesterov", "optimizer.lr=0.05", "train.seed=9"});
  succeed(Arguments{"train", "a.toml", "-s", "output.dir=whole"} + said);
  succeed(Arguments{"train", "a.toml", "--stop-at-step", "7"} + said);
  succeed({"train", "run", "--resume"});
  expect_same_end("run", "whole", 20);
}

TEST_F(Resume, ARunFolderMayBeMoved) {
  write_config("a.toml", "llama-tiny");
  succeed({"train", "a.toml", "-s", "output.dir=whole"});
  succeed({"train", "a.toml", "--stop-at-step", "7"});
  fs::create_directory(path("archive"));
  fs::rename(path("run"), path("archive/monday"));
  const Outcome outcome = succeed({"train", "archive/monday", "--resume"});
  expect_contains(outcome.err, {"archive/monday/checkpoints", "step 8"});
  EXPECT_FALSE(exists("run"));
  expect_same_end("archive/monday", "whole", 20);
}

TEST_F(Resume, AnAsynchronousCheckpointHoldsTheSameBytes) {
  write_config("a.toml", "llama-tiny");
  const Arguments train = {"train", "a.toml", "-s", "checkpoint.every=1", "-s", "checkpoint.keep=0"};
  succeed(train + set({"output.dir=whole"}));
  succeed(train + set({"checkpoint.async=true"}) + Arguments{"--stop-at-step", "9"});
  succeed(train + set({"checkpoint.async=true"}) + Arguments{"--resume"});
  for (std::int64_t step = 1; step <= 20; ++step) {
    expect_same_checkpoint(checkpoint_in("run", step), checkpoint_in("whole", step));
  }
  expect_same_end("run", "whole", 20);
}

TEST_F(Resume, AnInterruptFinishesTheStepAndSaves) {
  write_config("a.toml", "gpt2-tiny");
  succeed(train_more() + set({"output.dir=whole"}));
  for (const int signal : {SIGINT, SIGTERM}) {
    fs::remove_all(path("run"));
    Process process(MESHTRAIN_BINARY, train_more(), dir_, pausing_at("micro-step:4:0"));
    ASSERT_TRUE(wait_for_pause(process));
    process.signal(signal);
    let_go();
    const Outcome outcome = process.finish();
    EXPECT_EQ(outcome.status, 0) << outcome;
    expect_contains(outcome.out, {"stopped after step 4 of 30", "--resume"});
    const auto steps = static_cast<std::int64_t>(steps_of("run"));
    EXPECT_EQ(steps, 4);
    EXPECT_EQ(newest_checkpoint(path("run/checkpoints"))->step, steps);
    EXPECT_EQ(read_json("run/summary.json")["steps"], steps);
    succeed({"train", "run", "--resume"});
    expect_same_end("run", "whole", 30);
  }
}

TEST_F(Resume, AnInterruptDuringAnEvaluationLosesNoEvaluation) {
  write_config("a.toml", "gpt2-tiny");
  const Arguments train =
      Arguments{"train", "a.toml"} + set({"train.steps=4", "data.valid=text.txt", "train.eval_every=1",
                                          "train.eval_tokens=0", "data.seq_len=4", "train.micro_batch=1"});
  succeed(train + set({"output.dir=whole"}));
  ASSERT_EQ(metrics("whole").size(), 8U);
  for (const std::size_t lines : {3U, 7U}) {  // within the second and the last evaluation
    fs::remove_all(path("run"));
    Process process(MESHTRAIN_BINARY, train, dir_);
    ASSERT_TRUE(process.wait_until([&] { return metrics("run").size() >= lines; }));
    process.signal(SIGINT);
    EXPECT_EQ(process.finish().status, 0);
    if (metrics("run").size() < 8) succeed({"train", "run", "--resume"});
    expect_same_end("run", "whole", 4);
    EXPECT_EQ(read_json("run/summary.json")["eval_loss"], read_json("whole/summary.json")["eval_loss"]);
  }
}

TEST_F(Resume, AKillLosesAtMostOneInterval) {
  write_config("a.toml", "llama-tiny");
  for (const std::string async : {"false", "true"}) {
    const Arguments train =
        train_more() + set({"checkpoint.every=3", "precision.compute=bf16", "checkpoint.async=" + async});
    succeed(train + set({"output.dir=whole"}));
    // While a step runs, before the first checkpoint; while one is written; before it is committed.
    for (const std::string at : {"micro-step:2:0", "write:9:0", "before rename:21:0"}) {
      Process process(MESHTRAIN_BINARY, steps_of("run") == 0 ? train : Arguments{"train", "run", "--resume"},
                      dir_, pausing_at(at));
      ASSERT_TRUE(wait_for_pause(process)) << at;
      process.signal(SIGKILL);
      EXPECT_EQ(process.finish().status, -SIGKILL);
      let_go();
      const auto done = static_cast<std::int64_t>(steps_of("run"));
      const auto newest = newest_checkpoint(path("run/checkpoints"));
      // In the background the interval before the last may still be on its way to the disk.
      EXPECT_LE(done - (newest ? newest->step : 0), async == "true" ? 6 : 3);
    }
    const Outcome rest = succeed({"train", "run", "--resume"});
    expect_contains(rest.err, {"resuming from"});
    expect_same_end("run", "whole", 30);
    fs::remove_all(path("run"));
  }
}

// Samples are counted through all epochs: wherever a run stops in one, it goes on with the next sample.
TEST_F(Resume, LaterEpochsGoOnWhereTheyWere) {
  write_config("a.toml", "gpt2-tiny");
  write("text.txt", read("text.txt").substr(0, 7 * 32 + 1));  // 7 samples an epoch, 4 a step
  const Arguments train =
      Arguments{"train", "a.toml"} + set({"numerics.reduction=tree", "train.micro_batch=1"});
  succeed(train + set({"output.dir=whole"}));
  EXPECT_EQ(metrics("whole").back()["tokens"], 20 * 4 * 32);  // eleven epochs and more
  const Arguments go_on = train + Arguments{"--resume"};
  succeed(go_on + Arguments{"--stop-at-step", "5"});
  succeed(go_on + Arguments{"--stop-at-step", "7", "--ranks", "4"});  // at the end of the fourth epoch
  succeed(go_on + Arguments{"--stop-at-step", "12", "--ranks", "2", "-s", "mesh.zero=3"});
  succeed(go_on);
  expect_same_end("run", "whole", 20);
}

// What changes the samples is said; what does not is not.
TEST_F(Resume, OtherSamplesAreAnnounced) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml", "--stop-at-step", "5"});
  const auto told = [&](const std::vector<std::string>& keys, const std::string& stop) {
    return succeed(Arguments{"train", "run", "--resume", "--stop-at-step", stop} + set(keys)).err;
  };
  const auto is_warning = [](const std::string& text) {
    return text.find("may come twice") != std::string::npos;
  };
  EXPECT_FALSE(is_warning(told({"optimizer.lr=1e-3", "train.global_batch=8", "mesh.dp=2"}, "6")));
  const std::string other = told({"train.seed=9", "data.seq_len=16"}, "7");
  EXPECT_TRUE(is_warning(other)) << other;
  expect_contains(other, {"train.seed was 1 and is 9", "data.seq_len was 32 and is 16", checkpoint_name(6)});
  EXPECT_FALSE(is_warning(told({}, "8")));  // as the run has it by now
}

TEST_F(Resume, WithoutACheckpointItStartsAtStepOne) {
  write_config("a.toml", "gpt2-tiny");
  const Outcome outcome = succeed({"train", "a.toml", "--resume"});
  expect_contains(outcome.err, {"no checkpoint", "run/checkpoints", "starting at step 1"});
  EXPECT_EQ(steps_of("run"), 20U);
}

TEST_F(Resume, FromANamedCheckpointTheLaterOnesAreSetAside) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml", "-s", "checkpoint.every=5", "-s", "output.dir=whole"});
  succeed({"train", "a.toml", "-s", "checkpoint.every=5", "-s", "checkpoint.keep=0"});
  const Outcome outcome = succeed({"train", "a.toml", "-s", "checkpoint.every=5", "--resume-from",
                                   checkpoint_in("run", 10), "-s", "checkpoint.keep=0"});
  expect_contains(outcome.err, {checkpoint_name(20) + ".superseded", checkpoint_name(15) + ".superseded"});
  expect_same_end("run", "whole", 20);
  expect_same_checkpoint(checkpoint_in("run", 20) + ".superseded", checkpoint_in("whole", 20));
}

TEST_F(Resume, FromACheckpointOfAnotherRunTheFolderIsNotMixed) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml", "-s", "checkpoint.every=10", "-s", "output.dir=whole"});
  succeed({"train", "a.toml", "-s", "train.seed=2"});
  const std::string metrics_of_other = read("run/metrics.jsonl");
  const Outcome outcome = succeed({"train", "a.toml", "--resume-from", checkpoint_in("whole", 10)});
  expect_contains(outcome.err, {"run held another run", "run.1", checkpoint_in("whole", 10)});
  EXPECT_EQ(read("run.1/metrics.jsonl"), metrics_of_other);
  EXPECT_TRUE(exists(checkpoint_in("run.1", 20)));
  const auto whole = bits_of_metrics("whole");
  EXPECT_EQ(bits_of_metrics("run"), std::vector<nlohmann::json>(whole.begin() + 10, whole.end()));
  expect_same_checkpoint(checkpoint_in("run", 20), checkpoint_in("whole", 20));
}

TEST_F(Resume, CheckpointsMayLieOutsideTheRunFolder) {
  write_config("a.toml", "llama-tiny");
  succeed({"train", "a.toml", "-s", "output.dir=whole"});
  succeed({"train", "a.toml", "-s", "checkpoint.dir=elsewhere", "--stop-at-step", "7"});
  for (const char* command : {"inspect", "digest", "verify"}) succeed({"ckpt", command, "run"});
  expect_contains(succeed({"eval", "run", "-s", "data.valid=text.txt"}).out, {"elsewhere/step-00000007"});

  // Named from a folder where checkpoint.dir means another place, the run is not begun anew over it.
  fs::create_directory(path("below"));
  const Arguments resume = {"train", "../run", "--resume", "-s", "data.train=../text.txt"};
  const Outcome refused = Process(MESHTRAIN_BINARY, resume, path("below")).finish();
  EXPECT_EQ(refused.status, 2) << refused;
  expect_contains(refused.err, {"../run", "checkpoint.dir = \"elsewhere\" is not there", "--resume"});
  EXPECT_FALSE(exists("run.1"));
  EXPECT_EQ(steps_of("run"), 7U);

  succeed({"train", "run", "--resume"});
  EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("whole"));
  expect_same_checkpoint("elsewhere/" + checkpoint_name(20), checkpoint_in("whole", 20));
}

TEST_F(Resume, ACheckpointOfAnotherVersionIsNotDamaged) {
  write_config("a.toml", "llama-tiny");
  const std::string checkpoint = checkpoint_in("run", 7);
  succeed({"train", "a.toml", "-s", "checkpoint.every=5", "--stop-at-step", "7"});
  std::string manifest = read(checkpoint + "/manifest.json");
  const std::string version = "\"version\": 2";
  ASSERT_EQ(count(manifest, version), 1);
  write(checkpoint + "/manifest.json",
        manifest.replace(manifest.find(version), version.size(), "\"version\": 3"));
  for (const char* ranks : {"1", "2"}) {
    const Outcome outcome = run({"train", "run", "--resume", "--ranks", ranks});
    EXPECT_EQ(outcome.status, 2) << outcome;
    expect_contains(outcome.err, {checkpoint, "of version 3", "--resume-from"});
  }
  EXPECT_TRUE(exists(checkpoint));
  succeed({"train", "run", "--resume-from", checkpoint_in("run", 5)});
}

TEST_F(Resume, ADoneRunIsNotTrainedFurtherUnlessToldHowFar) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml", "-s", "optimizer.schedule=constant"});
  const std::string before = read("run/metrics.jsonl");
  const Outcome done = run({"train", "run", "--resume"});
  EXPECT_EQ(done.status, 2) << done;
  expect_contains(done.err, {"train.steps", "20"});
  EXPECT_EQ(read("run/metrics.jsonl"), before);
  succeed({"train", "run", "--resume", "-s", "train.steps=25"});
  EXPECT_EQ(steps_of("run"), 25U);
  succeed({"train", "a.toml", "-s", "optimizer.schedule=constant", "-s", "train.steps=25", "-s",
           "output.dir=whole"});
  expect_same_end("run", "whole", 25);
}

TEST_F(Resume, RefusesToStopWhereItHasBeenAlready) {
  write_config("a.toml", "gpt2-tiny");
  succeed({"train", "a.toml", "--stop-at-step", "10"});
  const Outcome outcome = run({"train", "run", "--resume", "--stop-at-step", "10"});
  EXPECT_EQ(outcome.status, 2) << outcome;
  expect_contains(outcome.err, {"--stop-at-step 10", "step 10"});
}

TEST_F(Resume, RefusesAnotherModelOrOptimizer) {
  write_config("a.toml", "llama-tiny");
  succeed({"train", "a.toml", "--stop-at-step", "10"});
  const std::string before = read("run/metrics.jsonl");
  const std::vector<std::pair<std::string, std::string>> mistakes = {
      {"model.layers=3", "layers"},
      {"model.heads=8", "heads"},
      {"model.rope_theta=5000", "rope_theta"},
      {"model.vocab=300", "vocab"},
      {"optimizer.name=sgd", "optimizer.name"},
      {"model.preset=gpt2-tiny", "gpt2"},
  };
  for (const auto& [mistake, key] : mistakes) {
    const Outcome outcome = run({"train", "a.toml", "--resume", "-s", mistake});
    EXPECT_EQ(outcome.status, 2) << mistake << '\n' << outcome;
    expect_contains(outcome.err, {key, checkpoint_name(10)});
    EXPECT_EQ(read("run/metrics.jsonl"), before) << mistake;
  }
  succeed({"train", "a.toml", "--resume"});
}

// Checkpoints hold whole tensors, whatever the mesh that wrote them.
TEST_F(Resume, StagesAndRanksMayChangeAtEveryStop) {
  using Keys = std::vector<std::string>;
  for (const std::string preset : {"gpt2-tiny", "llama-tiny"}) {
    write_config("a.toml", preset);
    for (const std::string compute : {"fp32", "bf16", "fp16"}) {
      SCOPED_TRACE(preset + " " + compute);
      const Arguments train = Arguments{"train", "a.toml"} +
                              set({"precision.compute=" + compute, "numerics.reduction=tree", "train.steps=9",
                                   "model.layers=3", "train.micro_batch=1", "optimizer.lr=3e-4",
                                   "data.valid=text.txt", "train.eval_every=3", "train.eval_tokens=60"});
      fs::remove_all(path("whole"));
      succeed(train + set({"output.dir=whole"}));
      // Two steps on each.
      const auto train_on = [&](const std::vector<Keys>& meshes) {
        fs::remove_all(path("run"));
        int step = 0;
        for (const Keys& mesh : meshes) {
          step += 2;
          succeed(train + set(mesh) + Arguments{"--resume", "--stop-at-step", std::to_string(step)});
        }
        succeed(train + Arguments{"--resume"});
      };
      train_on({{"mesh.pp=4"},
                {"mesh.dp=4", "mesh.zero=3"},
                {"mesh.pp=2", "mesh.dp=2", "mesh.zero=2", "mesh.schedule=zb-h1", "checkpoint.async=true"},
                {"mesh.pp=2", "mesh.schedule=interleaved", "mesh.virtual_stages=2"}});
      expect_same_end("run", "whole", 9);
      if (compute != "fp32") continue;
      train_on({{"mesh.tp=2", "mesh.pp=2"},
                {"mesh.dp=4", "mesh.zero=3"},
                {"mesh.pp=4", "checkpoint.async=true"},
                {"mesh.tp=4", "mesh.pp=2", "mesh.sequence_parallel=false"}});
      const auto lines = metrics("run");
      const auto expected = metrics("whole");
      ASSERT_EQ(lines.size(), expected.size());
      for (std::size_t i = 0; i < lines.size(); ++i) {
        for (const char* key : {"loss", "grad_norm", "eval_loss"}) {
          if (!expected[i].contains(key)) continue;
          const double value = expected[i][key].get<double>();
          EXPECT_NEAR(lines[i][key].get<double>(), value, 1e-5 * value) << key << " in line " << i + 1;
        }
      }
    }
  }
}

TEST_F(Resume, OverflowsOfFp16AreSkippedAndTrainingRecovers) {
  write_config("a.toml", "gpt2-tiny");
  const Arguments train =
      Arguments{"train", "a.toml"} +
      set({"precision.compute=fp16", "precision.loss_scale=1e12", "checkpoint.every=1", "checkpoint.keep=0",
           "train.steps=40", "optimizer.schedule=constant", "optimizer.warmup=0"});
  succeed(train);
  const auto lines = metrics("run");
  ASSERT_EQ(lines.size(), 40U);
  std::int64_t skipped = 0;
  while (skipped < 40 && lines[static_cast<std::size_t>(skipped)]["skipped"] == true) ++skipped;
  ASSERT_GE(skipped, 3);
  ASSERT_LT(skipped, 35);
  for (std::int64_t step = 2; step <= skipped; ++step) {
    expect_same_checkpoint(checkpoint_in("run", step), checkpoint_in("run", 1));
    EXPECT_TRUE(lines[static_cast<std::size_t>(step - 1)]["grad_norm"].is_null());
  }
  EXPECT_NE(read(checkpoint_in("run", skipped + 1) + "/model.safetensors"),
            read(checkpoint_in("run", skipped) + "/model.safetensors"));
  std::int64_t updates = 0;
  for (const auto& line : lines) updates += line["skipped"] == false ? 1 : 0;
  EXPECT_EQ(read_json("run/summary.json")["updates"], updates);
  EXPECT_LT(lines.back()["loss"], lines.front()["loss"].get<double>() - 0.5);

  // Adam's first update moves every element by lr: its bias correction counts updates, not steps.
  const SafetensorsReader before(path(checkpoint_in("run", skipped) + "/model.safetensors"));
  const SafetensorsReader after(path(checkpoint_in("run", skipped + 1) + "/model.safetensors"));
  std::vector<float> moved(64);
  std::vector<float> old(64);
  std::memcpy(moved.data(), after.find("norm.bias")->data.data(), 256);
  std::memcpy(old.data(), before.find("norm.bias")->data.data(), 256);
  for (std::size_t i = 0; i < moved.size(); ++i) {
    EXPECT_NEAR(std::abs(moved[i] - old[i]), 3e-3, 3e-5) << "element " << i;
  }
}

// What is read goes where it belongs and leaves no copy behind, also on another mesh.
TEST_F(Resume, TakesNoMoreMemoryThanIsPlanned) {
  write_config("a.toml", "gpt2-tiny");
  const Arguments train =
      Arguments{"train", "a.toml"} +
      set({"model.hidden=768", "model.ffn_hidden=3072", "model.heads=12", "model.kv_heads=12",
           "model.head_dim=64", "train.global_batch=4", "train.micro_batch=1", "optimizer.warmup=0"});
  constexpr std::int64_t kProgram = 65'000'000;  // libraries, token ids, other ranks' shared pages
  succeed(train + set({"train.steps=1"}));
  const std::int64_t state = read_json("run/summary.json")["checkpoints"]["bytes"];
  EXPECT_GT(state / 2, kProgram) << "a copy of it would show";
  std::int64_t steps = 1;
  for (const Arguments& mesh : {Arguments{}, Arguments{"--ranks", "2", "-s", "mesh.tp=2"}}) {
    succeed(train + set({"train.steps=" + std::to_string(++steps)}) + mesh + Arguments{"--resume"});
    const nlohmann::json summary = read_json("run/summary.json");
    EXPECT_LT(summary["peak_resident_bytes"].get<std::int64_t>(),
              summary["memory"]["total"].get<std::int64_t>() + kProgram);
  }
}

}  // namespace
}  // namespace meshtrain
