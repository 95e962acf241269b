// The CPU back end of ops/square_sum.h.
#pragma once

#include <cstdint>
#include <span>

#include "ops/square_sum.h"

namespace meshtrain::ops::cpu {

// Sets the lanes of nodes within x, whose first element is that of leaf `first_leaf`. A leaf that x ends
// inside of is a node of its own. The elements of `without` count as zeros.
void compute_square_nodes(Stream& stream, const Tensor& x, std::int64_t first_leaf, std::span<SquareNode> nodes,
                          std::span<const ElementRange> without);

}  // namespace meshtrain::ops::cpu
