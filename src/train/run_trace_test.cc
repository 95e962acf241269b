#include "train/run_trace.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "comm_ranks.h"
#include "train/memory_plan.h"

namespace meshtrain {
namespace {

Config tiny_config(std::int64_t dp) {
  Config config;
  config.model = {.arch = Architecture::kGpt2,
                  .layers = 1,
                  .hidden = 8,
                  .heads = 2,
                  .kv_heads = 2,
                  .head_dim = 4,
                  .ffn_hidden = 16,
                  .vocab = 11,
                  .context = 8,
                  .tie_embeddings = true};
  config.data.seq_len = 8;
  config.train.micro_batch = 1;
  config.train.global_batch = dp;
  config.precision.compute = DType::kF32;
  config.mesh.dp = dp;
  config.machine.threads = 1;
  return config;
}

class RunTraceTest : public ::testing::Test {
 protected:
  RunTraceTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "meshtrain_run_trace_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    dir_ = pattern;
  }
  ~RunTraceTest() override { std::filesystem::remove_all(dir_); }

  // Rank r of three records r · `events` events between a beginning and an end of its trace. Events of the
  // file, without those of communication.
  nlohmann::json record(int events, std::size_t events_per_track) {
    const Config config = tiny_config(3);
    const std::string path = (dir_ / "trace.json").string();
    const auto failures = testing::run_threads(3, {}, [&](World& world) {
      const std::unique_ptr<Device> device = world.make_device();
      RunTrace trace(path, events_per_track);
      Assembly assembly(config, *device, world, measure_arenas(config, world.rank()));
      trace.begin(assembly);
      for (int i = 0; i < world.rank() * events; ++i) {
        const TraceSpan span(assembly.stream.trace(), TraceKind::kCompute, "rank {} event {}", world.rank(), i);
      }
      trace.finish(assembly);
      const bool stopped = assembly.stream.trace() == nullptr;
      return stopped ? std::vector<std::string>{} : std::vector<std::string>{"still recording"};
    });
    for (const auto& lines : failures) EXPECT_EQ(lines, std::vector<std::string>{});
    std::ifstream file(path);
    return nlohmann::json::parse(file)["traceEvents"];
  }

  std::filesystem::path dir_;
};

// More than a chunk of them, in order.
TEST_F(RunTraceTest, BringsAllEventsOfAllRanksToOneFile) {
  constexpr int kEvents = 15'000;
  std::map<int, int> next;
  for (const nlohmann::json& event : record(kEvents, Trace::kEventsPerTrack)) {
    if (event["ph"] != "X" || event["cat"] != "compute") continue;
    const int rank = event["pid"];
    ASSERT_EQ(event["name"], fmt::format("rank {} event {}", rank, next[rank]));
    ++next[rank];
  }
  EXPECT_EQ(next, (std::map<int, int>{{1, kEvents}, {2, 2 * kEvents}}));
}

TEST_F(RunTraceTest, SaysWhatIsMissing) {
  std::map<int, std::string> labels;
  for (const nlohmann::json& event : record(10, 15)) {
    if (event["name"] == "process_labels") labels[event["pid"]] = event["args"]["labels"];
  }
  EXPECT_FALSE(labels.contains(0));  // its clock is the clock
  EXPECT_TRUE(labels[1].starts_with("clock within ") && labels[1].ends_with(" µs")) << labels[1];
  EXPECT_TRUE(labels[2].ends_with(" µs, the last 5 events are missing")) << labels[2];
}

TEST_F(RunTraceTest, OfARunThatDidNotBeginIsNotWritten) {
  const std::string path = (dir_ / "trace.json").string();
  RunTrace(path).write_own();
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace meshtrain
