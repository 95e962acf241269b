// Which layers each piece of a pipeline gets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace meshtrain {

// Of one micro-batch, forward and backward, in any unit.
struct LayerCosts {
  double embedding = 0.0;  // before the first block, on the first piece
  double block = 0.0;
  double head = 0.0;  // after the last, on the last piece
};

// Blocks of each piece, all of them in order: the split whose most loaded stage (its pieces are stage, stage +
// stages, …) has the least cost; of equal ones that whose pieces have the least sum of squared costs, then more
// blocks first: exactly so, with chunks too. Pieces in the middle have a block at least; the first and the last
// may have none. Needs blocks ≥ stages·chunks - 2 and costs.block > 0.
std::vector<std::int64_t> balanced_split(std::int64_t blocks, int stages, int chunks, const LayerCosts& costs);

// "9, 3".
std::string to_string(const std::vector<std::int64_t>& split);

}  // namespace meshtrain
