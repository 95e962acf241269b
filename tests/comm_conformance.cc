#include "comm_conformance.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "comm_conformance_parts.h"

namespace meshtrain::testing {
namespace {

constexpr std::int64_t kGuard = 64;
constexpr std::byte kPattern{0xA5};

}  // namespace

void Conformance::fail(const std::string& what) {
  constexpr std::size_t kKept = 20;
  if (failures_.size() < kKept) {
    failures_.push_back(
        fmt::format("rank {} of {} ({}): {}", world_.rank(), world_.size(), world_.engine(), what));
  }
}

std::string name_of(Place place) {
  constexpr std::array<const char*, 3> kNames = {"device memory", "host memory", "mixed memory"};
  return kNames[static_cast<std::size_t>(place)];
}

Block::Block(Conformance& suite, Place place, DType dtype, std::int64_t count) {
  before_ = kGuard + (count % 2) * size_of(dtype);
  const std::int64_t bytes = before_ + count * size_of(dtype) + kGuard;
  const bool on_device = place == Place::kDevice || (place == Place::kMixed && suite.world().rank() % 2 == 0);
  if (on_device) {
    buffer_ = suite.device().allocate(bytes, MemoryCategory::kCommunication);
    begin_ = buffer_.data();
  } else {
    host_.resize(static_cast<std::size_t>(bytes));
    begin_ = host_.data();
  }
  std::memset(begin_, static_cast<int>(kPattern), static_cast<std::size_t>(bytes));
  tensor_ = Tensor(begin_ + before_, dtype, {count});
}

Tensor Block::piece(std::int64_t begin, std::int64_t count) const {
  return {begin_ + before_ + begin * size_of(tensor_.dtype()), tensor_.dtype(), {count}};
}

bool Block::guards_untouched() const {
  const auto is_pattern = [](std::byte b) { return b == kPattern; };
  const std::byte* after = begin_ + before_ + tensor_.bytes();
  return std::all_of(begin_, begin_ + before_, is_pattern) && std::all_of(after, after + kGuard, is_pattern);
}

std::vector<std::string> run_conformance(World& world, Extent extent) {
  Conformance suite(world, extent);
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  std::string part;
  try {
    part = "groups";
    const auto comm = world.group("all", all);
    suite.expect(comm->rank() == world.rank() && comm->size() == world.size(), "the group of all ranks");
    part = "reductions";
    check_reductions(suite, *comm);
    part = "moves";
    check_moves(suite, *comm);
    part = "exchanges";
    check_exchanges(suite, *comm);
    part = "groups";
    check_groups(suite);
    part = "queues";
    check_queues(suite);
    part = "stats";
    check_stats(suite);
    comm->barrier();
  } catch (const std::exception& e) {
    suite.fail(fmt::format("{}: exception: {}", part, e.what()));
    world.abort(fmt::format("rank {} gave up: {}", world.rank(), e.what()));
  }
  return suite.failures();
}

}  // namespace meshtrain::testing
