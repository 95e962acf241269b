// What a training step keeps of a forward pass.
#pragma once

#include <cstdint>
#include <string_view>

namespace meshtrain {

// What to keep of a forward pass and what to compute again in the backward pass. The bits do not depend on it.
enum class RecomputePolicy : std::uint8_t {
  kNone,
  kSelective,  // attention: its output is computed again
  kFull,       // blocks: only their inputs are kept
};
std::string_view name_of(RecomputePolicy policy);

}  // namespace meshtrain
