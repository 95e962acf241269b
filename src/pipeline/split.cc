#include "pipeline/split.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace meshtrain {
namespace {

struct Piece {
  double fixed = 0.0;  // cost besides its blocks
  std::int64_t blocks = 0;
};

double cost(const Piece& piece, double block) {
  return piece.fixed + static_cast<double>(piece.blocks) * block;
}

// Index of the piece with the least cost, the first of equals, among those that have room.
template <class HasRoom>
std::size_t least_loaded(const std::vector<Piece>& pieces, double block, HasRoom has_room) {
  std::size_t least = pieces.size();
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    if (!has_room(i)) continue;
    if (least == pieces.size() || cost(pieces[i], block) < cost(pieces[least], block)) least = i;
  }
  check(least < pieces.size(), "no piece has room for a block");
  return least;
}

// With the fewest blocks that each may have.
std::vector<Piece> pieces_of(int count, const LayerCosts& costs) {
  std::vector<Piece> pieces(count, Piece{0.0, 1});
  pieces.front().fixed += costs.embedding;
  pieces.back().fixed += costs.head;
  pieces.front().blocks = pieces.back().blocks = 0;
  return pieces;
}

// Blocks that each stage may have, so that none has more than the least possible cost of the most loaded.
std::vector<std::int64_t> stage_limits(const std::vector<Piece>& pieces, std::int64_t blocks, int stages,
                                       double block) {
  std::vector<Piece> loads(stages);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    loads[i % stages].fixed += pieces[i].fixed;
    loads[i % stages].blocks += pieces[i].blocks;
  }
  std::int64_t left = blocks;
  for (const Piece& load : loads) left -= load.blocks;
  for (; left > 0; --left) ++loads[least_loaded(loads, block, [](std::size_t) { return true; })].blocks;
  double bottleneck = 0.0;
  for (const Piece& load : loads) bottleneck = std::max(bottleneck, cost(load, block));
  // Costs that differ by rounding are equal.
  bottleneck += 1e-9 * block;
  std::vector<std::int64_t> limits;
  for (Piece load : loads) {
    while (load.blocks < blocks && cost(load, block) + block <= bottleneck) ++load.blocks;
    limits.push_back(load.blocks);
  }
  return limits;
}

}  // namespace

// Only numbers of blocks count, so this shares out blocks one by one. Giving each to the least loaded stage
// makes the bottleneck least. Then the sum of squares is a sum of convex functions under nested limits (of
// stages, and of the whole), for which giving each block where it adds least, so to the least loaded piece
// whose stage has room, is exact (Federgruen and Groenevelt 1986, "The greedy procedure for resource allocation
// problems").
std::vector<std::int64_t> balanced_split(std::int64_t blocks, int stages, int chunks, const LayerCosts& costs) {
  const int count = stages * chunks;
  check(stages >= 1 && chunks >= 1 && blocks >= std::max(0, count - 2), "a split with too few blocks");
  check(costs.block > 0.0 && costs.embedding >= 0.0 && costs.head >= 0.0, "a split by costs that are not");
  std::vector<Piece> pieces = pieces_of(count, costs);
  std::vector<std::int64_t> room = stage_limits(pieces, blocks, stages, costs.block);
  std::int64_t left = blocks;
  for (int i = 0; i < count; ++i) {
    room[i % stages] -= pieces[i].blocks;
    left -= pieces[i].blocks;
  }
  for (; left > 0; --left) {
    const std::size_t piece =
        least_loaded(pieces, costs.block, [&](std::size_t i) { return room[i % stages] > 0; });
    ++pieces[piece].blocks;
    --room[piece % stages];
  }
  std::vector<std::int64_t> split;
  for (const Piece& piece : pieces) split.push_back(piece.blocks);
  return split;
}

std::string to_string(const std::vector<std::int64_t>& split) {
  return fmt::format("{}", fmt::join(split, ", "));
}

}  // namespace meshtrain
