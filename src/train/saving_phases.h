// Which checkpoint a step of writing belongs to.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "checkpoint/file_writer.h"

namespace meshtrain {

// Tells `at_phase` what a CheckpointWriter does, with the step of the checkpoint that is written: older ones
// that are removed meanwhile belong to it. Null for null. For the hook of one writer, which calls it from one
// thread at a time.
WriteHook phases_of_saving(std::function<void(std::string_view phase, std::int64_t step)> at_phase);

}  // namespace meshtrain
