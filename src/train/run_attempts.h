// What a later attempt at a run goes on from, after an earlier one was lost at any moment.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <tuple>

#include "checkpoint/checkpoint_folder.h"
#include "train/config.h"
#include "train/run.h"

namespace meshtrain {

// A run that was not told to resume, or finds nothing to resume, moves another run out of its folder, and one
// that resumes from an early checkpoint sets later ones aside. What was there before the first attempt is
// therefore remembered, and all that was not there is the run's own: its attempts go on from that, and do not
// take it for another run.
class RunAttempts {
 public:
  // Before the first attempt, which has these options. Changes nothing.
  RunAttempts(const Config& config, RunOptions options);

  struct Next {
    RunOptions options;
    std::string from;  // for the user: a checkpoint, or "step 1"
  };
  // Once all ranks of the last attempt are gone. From the newest checkpoint of its own; until there is one, as
  // the first attempt began.
  Next next() const;

 private:
  // Of a checkpoint's manifest: device, inode, time of the last change. Whatever takes its place has others.
  using Identity = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::int64_t>;

  static Identity identity_of(const CheckpointPlace& checkpoint);
  std::set<Identity> identities_of_checkpoints() const;
  bool folder_is_own() const;

  std::string folder_;
  std::string checkpoints_;
  RunOptions options_;
  std::set<Identity> earlier_checkpoints_;
  std::uint64_t earlier_folder_ = 0;  // the inode of a folder with another run; 0: there was none
};

}  // namespace meshtrain
