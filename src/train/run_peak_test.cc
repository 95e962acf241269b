#include "train/run_peak.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <mutex>
#include <set>

#include "base/cores.h"
#include "comm_ranks.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

class RunPeakTest : public ::testing::Test {
 protected:
  RunPeakTest() {
    std::string pattern = (fs::temp_directory_path() / "meshtrain_run_peak_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no temporary folder");
    dir_ = pattern;
    config_.precision.compute = DType::kF32;
  }
  ~RunPeakTest() override { fs::remove_all(dir_); }

  PeakCache cache() const { return PeakCache((dir_ / "peaks.json").string()); }
  // That ranks of `threads` each keep theirs under.
  PeakKey key(int ranks, int threads) const {
    const int cores = static_cast<int>(available_cores().size());
    return {.processor = processor_name(), .dtype = DType::kF32, .threads = std::min(cores, ranks * threads)};
  }
  // `body` on each rank.
  void on_ranks(int ranks, int threads, const std::function<void(RunPeak&)>& body) const {
    const auto failures = testing::run_threads(ranks, {}, [&](World& world) -> std::vector<std::string> {
      const std::unique_ptr<Communicator> control = world.everyone("control");
      RunPeak peak(config_, *control, threads, cache());
      body(peak);
      return {};
    });
    for (const auto& of_rank : failures) {
      for (const std::string& failure : of_rank) ADD_FAILURE() << failure;
    }
  }

  fs::path dir_;
  Config config_;
};

TEST_F(RunPeakTest, IsWhatTheConfigSays) {
  config_.machine.peak_tflops = 312.0;
  on_ranks(2, 1, [](RunPeak& peak) {
    EXPECT_EQ(peak.tflops(), 312.0);
    EXPECT_FALSE(peak.is_measured());
    EXPECT_FALSE(peak.is_doubtful());
  });
  config_.machine.peak_tflops = 0.0;
  on_ranks(2, 1, [](RunPeak& peak) { EXPECT_EQ(peak.tflops(), 0.0); });
}

// One measurement a host, for all its ranks: not one a rank, added up.
TEST_F(RunPeakTest, IsThatOfTheHostHoweverManyRanksShareIt) {
  for (const int ranks : {1, 4}) {
    ASSERT_TRUE(cache().keep(key(ranks, 2), {.tflops = 1e6, .undisturbed = true}));
    on_ranks(ranks, 2, [](RunPeak& peak) {
      EXPECT_EQ(peak.tflops(), 1e6);
      EXPECT_TRUE(peak.is_measured());
      EXPECT_FALSE(peak.is_doubtful());
      peak.measure();
      EXPECT_EQ(peak.tflops(), 1e6);  // never falls
    });
  }
}

// Once, at the second call or a later one, and not where others cannot wait for it.
TEST_F(RunPeakTest, IsMeasuredWhereItIsWorthwhile) {
  const auto measurements = [&](int ranks, double deadline, double seconds_left) {
    fs::remove(dir_ / "peaks.json");
    config_.mesh.deadline = deadline;
    std::atomic<int> measured = 0;
    on_ranks(ranks, 1, [&](RunPeak& peak) {
      for (int step = 1; step <= 9; ++step) {
        if (peak.measure_if_worthwhile(seconds_left, [] {})) measured += step;
      }
    });
    return measured.load() / ranks;
  };
  EXPECT_EQ(measurements(1, 300.0, 100.0), 2);
  EXPECT_EQ(measurements(2, 300.0, 100.0), 2);
  EXPECT_EQ(measurements(2, 300.0, 19.0), 0);
  EXPECT_EQ(measurements(2, 4.0, 100.0), 0);
  EXPECT_EQ(measurements(1, 4.0, 100.0), 2);
}

TEST_F(RunPeakTest, IsMeasuredOnceAndKept) {
  std::mutex mutex;
  std::set<double> measured;
  on_ranks(3, 1, [&](RunPeak& peak) {
    EXPECT_EQ(peak.tflops(), 0.0);
    EXPECT_TRUE(peak.is_doubtful());
    peak.measure();
    const std::lock_guard lock(mutex);
    measured.insert(peak.tflops());
  });
  ASSERT_EQ(measured.size(), 1U) << "on every rank alike";
  EXPECT_GT(*measured.begin(), 1e-6);
  ASSERT_TRUE(cache().find(key(3, 1)));
  EXPECT_EQ(cache().find(key(3, 1))->tflops, *measured.begin());
  on_ranks(3, 1, [&](RunPeak& peak) { EXPECT_EQ(peak.tflops(), *measured.begin()); });
  // Threads of before are bound to where they were.
  const std::vector<int> cores = available_cores();
  on_ranks(1, 1, [](RunPeak& peak) { peak.measure(); });
  EXPECT_EQ(available_cores(), cores);
}

}  // namespace
}  // namespace meshtrain
