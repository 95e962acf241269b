#include "model/recompute.h"

namespace meshtrain {

std::string_view name_of(RecomputePolicy policy) {
  switch (policy) {
    case RecomputePolicy::kNone:
      return "none";
    case RecomputePolicy::kSelective:
      return "selective";
    case RecomputePolicy::kFull:
      return "full";
  }
  return "unknown";
}

}  // namespace meshtrain
