// The peak of the matrix product that a run's MFU is a fraction of: the rate of all its hosts together.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "telemetry/peak_cache.h"
#include "train/config.h"

namespace meshtrain {

class RunPeak {
 public:
  // What machine.peak_tflops gives, else what was measured before on each host of the run, for the cores that
  // its ranks use there together. Measures nothing. A collective call of the run's ranks. `threads`: of this
  // rank.
  RunPeak(const Config& config, Communicator& control, int threads, PeakCache cache = PeakCache());

  // TFLOP/s; 0: not known.
  double tflops() const { return tflops_; }
  // Whether machine.peak_tflops leaves it to measurements.
  bool is_measured() const { return measured_; }
  // Whether measuring may raise it: it is not known, was measured on a busy host, or part() was asked for more.
  bool is_doubtful() const { return measured_ && doubtful_; }

  // Measures, in half a second or so, by one rank of each host while the others wait, and keeps what came out
  // for later runs. What is known never falls. A collective call; this rank must have nothing under way.
  void measure();

  // Measures where it is worthwhile: the run has more than kLongRun seconds to go, and nothing better is known
  // than a guess. Not where the others would wait under a deadline (mesh.deadline) of less than kPatientRanks
  // seconds: a busy host may take long. `settle` is called before. Returns whether it did. A collective call
  // after each step; rank 0's seconds count. Ranks talk about it after the 2nd, 4th, 8th … call only.
  static constexpr double kLongRun = 20.0;
  static constexpr double kPatientRanks = 30.0;
  bool measure_if_worthwhile(double seconds_left, const std::function<void()>& settle);

  // `tflops` as a part of the peak; nothing where that is not known, or is lower: then it was measured while
  // the host was busy.
  std::optional<double> part(double tflops);

  // "0.981 TFLOP/s (bf16, 2 threads)".
  std::string text() const;

 private:
  void add_up_hosts();

  Communicator& control_;
  PeakCache cache_;
  PeakKey key_;             // of this host
  KnownPeak own_;           // of this host, where this rank measures
  std::vector<int> cores_;  // that the run's ranks use on this host
  bool measured_ = false;
  bool patient_ = true;    // the ranks' deadline allows for a measurement
  bool measures_ = false;  // this rank, for its host
  bool doubtful_ = true;
  std::int64_t all_threads_ = 0;  // of all hosts
  double tflops_ = 0.0;
  std::uint64_t calls_ = 0;  // of measure_if_worthwhile()
  int measurements_ = 0;
};

}  // namespace meshtrain
