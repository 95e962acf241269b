// One gradient norm for all ranks.
#pragma once

#include "comm/communicator.h"
#include "device/stream.h"
#include "params/param_store.h"

namespace meshtrain {

// Sum of squares of the gradients of all units, in double: over each unit by the tree of ops/square_sum.h,
// units added in order. Every rank adds the nodes of its own part; `owners` are the ranks that have the
// others, one a part. So the bits depend on the gradients alone. A collective call where there are parts.
double gradient_square_sum(Stream& stream, const ParamStore& store, Communicator& owners);

}  // namespace meshtrain
