// What checkpoints cost: `plan --checkpoint` against what a run leaves, and checkpoint.every = "auto".
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "program.h"

namespace meshtrain {
namespace {

constexpr double kHour = 3600.0;

class CheckpointCost : public ProgramTest {
 protected:
  CheckpointCost() { write_config("a.toml", "gpt2-tiny"); }

  // Measures nothing.
  static Arguments given(const Arguments& more = {}) {
    return Arguments{"plan", "a.toml", "--json", "--checkpoint", "--write-gbps", "1", "--step-seconds", "0.5"} +
           more;
  }
  nlohmann::json planned(const Arguments& more = {}) const {
    return succeed_with_json(given(more))["checkpoint"];
  }

  std::int64_t bytes_in(const std::string& folder) const {
    std::int64_t bytes = 0;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path(folder))) {
      if (entry.is_regular_file()) bytes += static_cast<std::int64_t>(entry.file_size());
    }
    return bytes;
  }

  std::vector<std::string> saved(const std::string& run) const {
    std::vector<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(path(run + "/checkpoints"))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
};

TEST_F(CheckpointCost, SizeIsThatOfARunsCheckpoint) {
  for (const std::string optimizer : {"adamw", "momentum", "sgd"}) {
    for (const std::string tied : {"true", "false"}) {
      const std::vector<std::string> keys = {"optimizer.name=" + optimizer, "model.tie_embeddings=" + tied,
                                             "train.steps=1", "optimizer.warmup=0"};
      const std::int64_t bytes = planned(set(keys))["bytes"];
      fs::remove_all(path("run"));
      succeed(Arguments{"train", "a.toml"} + set(keys));
      const std::int64_t written = bytes_in("run/checkpoints/step-00000001");
      EXPECT_GE(written, bytes) << optimizer << ' ' << tied;
      EXPECT_LE(written, bytes + 32'768) << optimizer << ' ' << tied;  // headers and the manifest
    }
  }
}

// Young's published values, and one failure in 50 000 device-hours: 8 devices 6250 h, 1024 48.8 h.
TEST_F(CheckpointCost, PublishedValues) {
  const double bytes = planned()["bytes"];
  const auto with = [&](double minutes, double mtbf) {
    return succeed_with_json(Arguments{"plan", "a.toml", "--json", "--checkpoint", "--step-seconds", "60",
                                       "--write-gbps", fmt::format("{:.17g}", bytes / (minutes * 60.0) * 1e-9),
                                       "--mtbf", fmt::format("{:.17g}", mtbf / 60.0)})["checkpoint"];
  };
  const nlohmann::json slow = with(10.0, 2930.0);
  EXPECT_EQ(slow["interval_steps"], 242);
  EXPECT_NEAR(slow["waste"], 0.083, 0.0005);
  const nlohmann::json fast = with(1.0, 2930.0);
  EXPECT_EQ(fast["interval_steps"], 77);
  EXPECT_NEAR(fast["waste"], 0.026, 0.0005);
  for (const auto& [ranks, hours] : {std::pair{8, 6250.0}, std::pair{1024, 48.8}}) {
    const nlohmann::json plan = planned(
        {"--ranks", std::to_string(ranks), "-s", "train.global_batch=2048", "-s", "train.micro_batch=1"});
    EXPECT_NEAR(plan["seconds_between_failures"]["value"].get<double>() / kHour, hours, 0.05) << ranks;
    EXPECT_GE(plan["bytes_of_rank"], bytes / ranks) << ranks;
    // Each of the model's units, no more than ten, is cut at multiples of 16 elements of 12 bytes.
    EXPECT_LE(plan["bytes_of_rank"], bytes / ranks + 10 * 16 * 12) << ranks;
  }
}

TEST_F(CheckpointCost, FailuresAreSaidByAnOptionOrTheConfig) {
  const auto hours = [&](const Arguments& more) {
    return planned(more)["seconds_between_failures"]["value"].get<double>() / kHour;
  };
  EXPECT_EQ(hours({}), 50'000.0);
  EXPECT_EQ(hours({"-s", "checkpoint.mtbf_hours=3"}), 3.0);
  EXPECT_EQ(hours({"-s", "checkpoint.mtbf_hours=3", "--mtbf", "4"}), 4.0);
  EXPECT_EQ(hours({"-s", "checkpoint.mtbf_hours=3", "--device-hours-per-failure", "100", "--ranks", "2"}),
            50.0);
}

TEST_F(CheckpointCost, WhatIsNotGivenIsMeasuredAndSaidSo) {
  const nlohmann::json plan = succeed_with_json(
      {"plan", "a.toml", "--json", "--checkpoint", "-s", "checkpoint.async=true"})["checkpoint"];
  EXPECT_GT(plan["write_bytes_per_second"]["value"], 0.0);
  expect_contains(plan["write_bytes_per_second"]["source"], {"measured", dir_.string()});
  expect_contains(plan["copy_bytes_per_second"]["source"], {"measured"});
  expect_contains(plan["step_seconds"]["source"], {"modelled", "1 TFLOP/s"});
  EXPECT_FALSE(exists("run"));  // measured in the nearest folder that exists, and nothing stays
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
    EXPECT_EQ(entry.path().filename().string().find("meshtrain"), std::string::npos) << entry;
  }
  const Outcome text = succeed({"plan", "a.toml", "--checkpoint", "-s", "checkpoint.every=auto"});
  expect_contains(text.out, {"MFU counts", "save every", "checkpoint.every = \"auto\"", "writing: measured"});
  const Outcome nowhere = run({"plan", "a.toml", "--checkpoint", "-s", "checkpoint.dir=/proc/here"});
  EXPECT_EQ(nowhere.status, 1) << nowhere;
  expect_contains(nowhere.err, {"/proc", "--write-gbps"});
}

TEST_F(CheckpointCost, MistakesAreRefused) {
  for (const std::string option : {"--write-gbps", "--mtbf", "--device-hours-per-failure", "--step-seconds"}) {
    for (const std::string bad : {"0", "-1", "nan", "inf", "1e300", "fast", ""}) {
      expect_refused({"plan", "a.toml", "--checkpoint", option + "=" + bad}, {option});
    }
    expect_refused({"plan", "a.toml", option, "3"}, {option, "--checkpoint"});  // which it needs
  }
  expect_refused(given({"--mtbf", "3", "--device-hours-per-failure", "4"}), {"--mtbf"});
  expect_refused({"plan", "a.toml", "--checkpoint", "--timeline"}, {"--timeline"});
  expect_refused({"train", "a.toml", "-s", "checkpoint.every=often"}, {"checkpoint.every", "auto"});
}

TEST_F(CheckpointCost, TheSummarySaysWhatSavesTook) {
  for (const std::string async : {"false", "true"}) {
    fs::remove_all(path("run"));
    const std::vector<std::string> keys = {"checkpoint.every=5", "checkpoint.async=" + async};
    succeed(Arguments{"train", "a.toml", "--ranks", "2"} + set(keys));
    const nlohmann::json saves = read_json("run/summary.json")["checkpoints"];
    EXPECT_EQ(saves["saved"], 4);
    EXPECT_EQ(saves["bytes"], planned(set(keys))["bytes"]);
    EXPECT_GT(saves["write_seconds"], 0.0);
    EXPECT_GT(saves["stalled_seconds"], 0.0);
    if (async == "false") {
      EXPECT_GE(saves["stalled_seconds"], saves["write_seconds"]);
    }
  }
}

TEST_F(CheckpointCost, BenchReportsAndLeavesNothing) {
  for (const std::string ranks : {"1", "3"}) {
    fs::create_directory(path("disk"));
    const nlohmann::json result = succeed_with_json(
        {"bench", "checkpoint", "--mb", "9", "--rounds", "2", "--ranks", ranks, "--dir", "disk", "--json"});
    EXPECT_EQ(result["ranks"], std::stoi(ranks));
    EXPECT_EQ(result["rounds"], 2);
    EXPECT_EQ(result["bytes"], 9 << 20);
    EXPECT_EQ(result["dir"], path("disk").string());
    for (const char* key : {"plain", "checkpoint", "async_held", "async"}) {
      const double seconds = result[key]["seconds"];
      EXPECT_GT(seconds, 0.0) << key;
      EXPECT_DOUBLE_EQ(result[key]["bytes_per_second"], (9 << 20) / seconds) << key;
    }
    EXPECT_LE(result["async_held"]["seconds"], result["async"]["seconds"]);
    EXPECT_GT(result["ratio"], 0.0);
    EXPECT_TRUE(fs::is_empty(path("disk")));
  }
  const Outcome text = succeed({"bench", "checkpoint", "--mb", "1", "--rounds", "1", "--dir", "disk"});
  expect_contains(text.out,
                  {"a plain file, written and synced", "of a plain file's speed", "training stands still"});
}

TEST_F(CheckpointCost, BenchRefusesMistakes) {
  const Arguments bench = {"bench", "checkpoint"};
  for (const std::string bad : {"0", "-1", "x", "1.5", "9999999999"})
    expect_refused(bench + Arguments{"--mb", bad}, {"--mb"});
  expect_refused(bench + Arguments{"--rounds", "0"}, {"--rounds"});
  expect_refused(bench + Arguments{"--ranks", "0"}, {"--ranks"});
  expect_refused(bench + Arguments{"--dir", "nowhere"}, {"--dir nowhere"});
  expect_refused(bench + Arguments{"--dir", "a.toml"}, {"--dir a.toml"});
  expect_refused(bench + Arguments{"--mb", "1048576"}, {"--mb 1048576", "choose less"});  // a TiB
  expect_refused(bench + Arguments{"--mb", "1", "--dir", "/proc"}, {"--dir /proc"});
  expect_refused(bench + Arguments{"--json", "nowhere/a.json"}, {"nowhere/a.json"});
}

TEST_F(CheckpointCost, AutoSavesAndChangesNoBit) {
  const Arguments train = {"train", "a.toml",         "--ranks", "2",
                           "-s",    "train.steps=45", "-s",      "checkpoint.keep=0"};
  succeed(train + set({"output.dir=plain"}));
  for (const std::string async : {"false", "true"}) {
    fs::remove_all(path("run"));
    // An hour between failures and steps of milliseconds: saves are as far apart as they may be.
    const Outcome outcome =
        succeed(train + set({"checkpoint.every=auto", "checkpoint.mtbf_hours=1", "checkpoint.async=" + async}));
    const std::size_t told = outcome.err.find("checkpoint.every = \"auto\": every ");
    EXPECT_NE(told, std::string::npos) << outcome;
    EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("plain"));
    const std::vector<std::string> names = saved("run");
    ASSERT_GE(names.size(), 2U);
    EXPECT_EQ(names.front(), "step-00000010");
    EXPECT_EQ(names.back(), "step-00000045");
    EXPECT_NE(read("run/config.toml").find("every = \"auto\""), std::string::npos);
    // A run that goes on keeps to it.
    for (std::size_t i = 1; i < names.size(); ++i) fs::remove_all(path("run/checkpoints/" + names[i]));
    succeed({"train", "run", "--resume"});
    EXPECT_EQ(bits_of_metrics("run"), bits_of_metrics("plain"));
    const std::vector<std::string> again = saved("run");
    EXPECT_EQ(again[0], "step-00000010");
    EXPECT_EQ(again[1], "step-00000020");
  }
}

}  // namespace
}  // namespace meshtrain
