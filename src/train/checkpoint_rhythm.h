// When a run saves: after so many steps, or with checkpoint.every = "auto" as often as wastes least.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "train/config.h"

namespace meshtrain {

// Mean time between failures of the run: checkpoint.mtbf_hours, or one failure in kDeviceHoursPerFailure of
// each rank. The mesh must be filled in.
double seconds_between_failures(const Config& config);

// Seconds, of a run so far.
struct SaveTimes {
  double stall = 0.0;    // that a save holds training
  double writing = 0.0;  // until a checkpoint is committed, which may go on beside training; 0: not known
};

// The seconds of training between two checkpoints: Young's (checkpoint/interval.h), but
//  - not less than it takes to write one, since the next would wait for it;
//  - where mtbf_hours is not said, at most 30 minutes, or what makes saving 1 % of the time if that is longer.
double auto_interval(const Config& config, const SaveTimes& times);

// Of one rank; all ranks of a run have equal ones. With "auto" the first save is after kFirst steps; when a
// save is done, rank 0 says after which step the next one is due, by the median stall of the last saves and the
// time that a step took since the save before. From one to the next the steps grow fourfold at most, so that
// the first times, which tell little, do not decide for long.
class CheckpointRhythm {
 public:
  static constexpr std::int64_t kFirst = 10;

  using Clock = std::function<double()>;  // seconds
  explicit CheckpointRhythm(const Config& config);
  CheckpointRhythm(const Config& config, Clock clock);

  // Training goes on from here.
  void begin(std::int64_t step);
  // Whether a save is due when this step is done, train.steps left out. The same on every rank.
  bool due(std::int64_t step) const;
  // After a save. With "auto" a collective call of all ranks. Returns, on rank 0, what to tell the user: empty
  // unless the interval is another than the last one told of.
  std::string saved(std::int64_t step, const SaveTimes& times, Communicator& ranks);

 private:
  struct Choice {
    std::int64_t steps = kFirst;  // to the next save
    std::string message;
  };
  Choice choose(std::int64_t step, const SaveTimes& times);

  const Config& config_;
  Clock clock_;
  bool auto_ = false;
  std::int64_t next_ = 0;    // step to save after
  std::int64_t last_ = 0;    // step of the last save, or the first step
  double resumed_at_ = 0.0;  // when training went on after it
  std::vector<double> stalls_;
  std::int64_t told_ = 0;  // steps between saves, as the user was told
};

}  // namespace meshtrain
