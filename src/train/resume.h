// Which checkpoint a run goes on from. Its ranks check it together before any of it is taken up.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "comm/communicator.h"
#include "train/config.h"

namespace meshtrain {

// What was found for a run that goes on.
struct ResumeSource {
  std::unique_ptr<Checkpoint> checkpoint;  // null: there is none
  std::vector<std::string> damaged;        // newer ones that were passed over; on rank 0
};

// The newest checkpoint in `directory` that is whole: newer ones that are damaged are passed over, which rank 0
// says aloud. A collective call: every rank hashes a part of the bytes, and all decide alike. Throws UserError
// when there are checkpoints and all are damaged, or when it comes to one of another version.
ResumeSource newest_whole_checkpoint(const std::string& directory, Communicator& ranks);

// The checkpoint that rank 0's `path` resolves to. A collective call. Throws UserError where it is missing or
// damaged, naming the newest earlier one that is whole.
ResumeSource whole_checkpoint(const std::string& path, Communicator& ranks);

// Where the config has other samples, or another order of them, than the run had that wrote the checkpoint: a
// sentence that says so; else empty. The position in them goes on, so some may come twice and others never.
std::string other_samples(const Config& config, const Checkpoint& checkpoint);

}  // namespace meshtrain
