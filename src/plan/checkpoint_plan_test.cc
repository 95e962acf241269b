#include "plan/checkpoint_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>

#include "comm/engines.h"
#include "train/assembly.h"
#include "train/checkpointing.h"
#include "train/mesh.h"

namespace meshtrain {
namespace {

Config config_with(const std::vector<std::string>& overrides, std::int64_t ranks = 1) {
  std::vector<std::string> all = {"model.vocab=257", "data.seq_len=32", "train.global_batch=24",
                                  "train.micro_batch=1"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return for_ranks(parse_config("[model]\npreset = \"gpt2-tiny\"\n", "test", all), ranks);
}

CheckpointAssumptions assumptions(double bytes_per_second, double apart, double step) {
  return {.write_bytes_per_second = {bytes_per_second, "given"},
          .copy_bytes_per_second = {1e9, "given"},
          .seconds_between_failures = {apart, "given"},
          .step_seconds = {step, "given"}};
}

// fp32 masters and states: 124 439 808 parameters is what GPT-2 is published with, its tied table once.
TEST(CheckpointPlan, SizeIsMastersAndStates) {
  const std::vector<std::string> gpt2 = {"model.preset=gpt2-124m", "model.vocab=50257"};
  const std::pair<const char*, std::int64_t> optimizers[] = {
      {"adamw", 3}, {"adam", 3}, {"momentum", 2}, {"nesterov", 2}, {"adagrad", 2}, {"rmsprop", 2}, {"sgd", 1}};
  for (const auto& [name, values] : optimizers) {
    std::vector<std::string> overrides = gpt2;
    overrides.push_back(std::string("optimizer.name=") + name);
    const CheckpointSize size = checkpoint_size(config_with(overrides));
    EXPECT_EQ(size.all, values * 4 * 124'439'808) << name;
    EXPECT_EQ(size.of_rank, size.all) << name;
  }
  EXPECT_EQ(checkpoint_size(config_with({"optimizer.name=rmsprop", "optimizer.momentum=0.9"})).all,
            checkpoint_size(config_with({})).all);
}

// What each rank of the trainer says that it writes.
std::vector<std::int64_t> shares(const Config& config) {
  std::vector<std::int64_t> result;
  const auto ranks = static_cast<int>(ranks_of(config.mesh));
  for (int rank = 0; rank < ranks; ++rank) {
    const auto world = make_sim_world(rank, ranks);
    const auto device = world->make_device();
    result.push_back(checkpoint_contents(Assembly(config, *device, *world, std::nullopt), {}).bytes());
  }
  return result;
}

TEST(CheckpointPlan, RanksShareTheWriting) {
  const std::int64_t all = checkpoint_size(config_with({})).all;
  const std::pair<std::vector<std::string>, int> meshes[] = {{{}, 4},
                                                             {{"mesh.zero=3"}, 4},
                                                             {{"mesh.zero=1", "mesh.tp=2"}, 4},
                                                             {{"mesh.tp=4"}, 4},
                                                             {{"mesh.pp=2", "mesh.stage_layers=[1, 1]"}, 6},
                                                             {{"mesh.tp=2", "mesh.pp=2"}, 8}};
  for (const auto& [mesh, ranks] : meshes) {
    SCOPED_TRACE(::testing::PrintToString(mesh));
    const Config config = config_with(mesh, ranks);
    const CheckpointSize size = checkpoint_size(config);
    const std::vector<std::int64_t> bytes = shares(config);
    EXPECT_EQ(size.all, all);
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}), all);
    const auto most = std::max_element(bytes.begin(), bytes.end());
    EXPECT_EQ(size.of_rank, *most);
    EXPECT_EQ(size.stage, (most - bytes.begin()) / (ranks / config.mesh.pp));
    EXPECT_LT(size.of_rank, all / ranks * 3 / 2);  // fair: the tiny model's table is what tips it
  }
}

// Published: 1 minute a checkpoint and 2930 minutes between failures, 77 minutes and 2.6 %.
TEST(CheckpointPlan, WritingStopsTraining) {
  const Config config = config_with({});
  const auto all = static_cast<double>(checkpoint_size(config).all);
  const CheckpointPlan plan = plan_checkpoints(config, assumptions(all / 60.0, 2930 * 60.0, 10.0));
  EXPECT_DOUBLE_EQ(plan.write_seconds, 60.0);
  EXPECT_DOUBLE_EQ(plan.stall_seconds, 60.0);
  EXPECT_EQ(std::round(plan.interval_seconds / 60.0), 77.0);
  EXPECT_EQ(plan.interval_steps, 459);  // sqrt(2 · 60 s · 175 800 s) / 10 s = 459.3
  EXPECT_EQ(std::round(plan.waste * 1000.0), 26.0);
  EXPECT_DOUBLE_EQ(plan.lost_seconds, 0.5 * plan.interval_seconds);
  EXPECT_GT(waste_of_steps(plan, 100), plan.waste);
  EXPECT_GT(waste_of_steps(plan, 2000), plan.waste);
}

TEST(CheckpointPlan, AsyncStopsTrainingForTheCopy) {
  const Config config = config_with({"checkpoint.async=true"}, 4);
  const CheckpointSize size = checkpoint_size(config);
  const double copy = static_cast<double>(size.of_rank) * 1e-9;  // at 1 GB/s
  const double write = static_cast<double>(size.all) / 1e6 + copy;
  const CheckpointPlan plan = plan_checkpoints(config, assumptions(1e6, 1e9, 0.25));
  EXPECT_DOUBLE_EQ(plan.stall_seconds, copy);
  EXPECT_DOUBLE_EQ(plan.write_seconds, write);
  EXPECT_DOUBLE_EQ(plan.interval_seconds, std::sqrt(2.0 * copy * 1e9));
  EXPECT_DOUBLE_EQ(plan.lost_seconds, 0.5 * plan.interval_seconds + write - copy);
  // Failures so often that Young's interval is shorter than writing takes.
  const CheckpointPlan slow = plan_checkpoints(config, assumptions(1e5, 60.0, 0.25));
  EXPECT_EQ(slow.interval_seconds, slow.write_seconds);
}

// The text without the ends of its lines and other spacing.
std::string words_of(const CheckpointPlan& plan, const Config& config) {
  std::istringstream stream(to_text(plan, config));
  std::string text;
  for (std::string word; stream >> word;) text += text.empty() ? word : " " + word;
  return text;
}

TEST(CheckpointPlan, TextAndJsonSayWhatWasAssumed) {
  const Config config = config_with({"checkpoint.every=100", "checkpoint.async=true"});
  const CheckpointPlan plan = plan_checkpoints(config, assumptions(1e6, 3600.0, 0.5));
  const nlohmann::json json = to_json(plan, config);
  EXPECT_EQ(json["bytes"], plan.size.all);
  EXPECT_EQ(json["write_bytes_per_second"]["value"], 1e6);
  EXPECT_EQ(json["step_seconds"]["source"], "given");
  EXPECT_EQ(json["interval_steps"], plan.interval_steps);
  EXPECT_EQ(json["configured"]["steps"], 100);
  EXPECT_EQ(json["configured"]["waste"], waste_of_steps(plan, 100));
  const std::string text = words_of(plan, config);
  for (const char* part : {"writing: given", "copying: given", "failures: given", "a step: given",
                           "checkpoint.every = 100", "at 0.001 GB/s"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(text.find("rough"), std::string::npos) << text;
}

TEST(CheckpointPlan, TextSaysWhereTheFormulaEnds) {
  const Config config = config_with({"checkpoint.every=auto"});
  const auto write = static_cast<double>(checkpoint_size(config).all) / 1e6;  // seconds, at 1 MB/s
  const auto text = [&](double apart) {
    return words_of(plan_checkpoints(config, assumptions(1e6, apart, 0.01)), config);
  };
  EXPECT_NE(text(10.0 * write).find("A save takes 0.1 of the time between failures"), std::string::npos);
  const std::string often = text(write);
  EXPECT_NE(often.find("gets nowhere"), std::string::npos) << often;
  EXPECT_NE(often.find("over 100 %"), std::string::npos) << often;
  // A run knows nothing of what plan was told.
  EXPECT_NE(often.find("a run goes by checkpoint.mtbf_hours, which is not set: a failure every 50000 h"),
            std::string::npos)
      << often;
  EXPECT_EQ(text(50'000.0 * 3600.0).find("a run goes by"), std::string::npos);
}

// A save can come no sooner than the end of a step.
TEST(CheckpointPlan, AStepIsTheLeastInterval) {
  const Config config = config_with({});
  const auto bytes = static_cast<double>(checkpoint_size(config).all);
  // Young: sqrt(2 · 0.5 s · 400 s) = 20 s, of which 5 % is lost; saves after each 50 s lose 0.5/50 + 25/400.
  const CheckpointPlan plan = plan_checkpoints(config, assumptions(bytes / 0.5, 400.0, 50.0));
  EXPECT_DOUBLE_EQ(plan.interval_seconds, 50.0);
  EXPECT_EQ(plan.interval_steps, 1);
  EXPECT_DOUBLE_EQ(plan.lost_seconds, 25.0);
  EXPECT_DOUBLE_EQ(plan.waste, 0.0725);
  const std::string text = words_of(plan, config);
  EXPECT_NE(text.find("1 step of 50 s, which takes longer than Young's 20 s"), std::string::npos) << text;
}

}  // namespace
}  // namespace meshtrain
