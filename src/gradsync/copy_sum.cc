#include "gradsync/copy_sum.h"

#include <algorithm>

#include "base/error.h"
#include "ops/transfer.h"

namespace meshtrain::gradsync {
namespace {

std::int64_t elements_of(const std::vector<CopyRange>& ranges) {
  std::int64_t total = 0;
  for (const CopyRange& range : ranges) total += range.end - range.begin;
  return total;
}

}  // namespace

CopySum::CopySum(Device& device, const ParamStore& store, std::vector<Communicator*> groups) {
  std::int64_t most = 0;
  for (Communicator* ranks : groups) {
    Group group{.ranks = ranks, .of_unit = {}};
    for (int unit = 0; unit < static_cast<int>(store.units().size()); ++unit) {
      std::vector<CopyRange> ranges = store.partial_copies(unit);
      std::erase_if(ranges, [&](const CopyRange& range) { return range.ranks != ranks->size(); });
      if (ranges.size() > 1) most = std::max(most, elements_of(ranges));
      group.of_unit.push_back(std::move(ranges));
    }
    groups_.push_back(std::move(group));
  }
  if (most > 0) {
    packed_ = device.allocate(most * size_of(store.gradient_dtype()), MemoryCategory::kCommunication);
  }
}

void CopySum::add(Stream& stream, int unit, const Tensor& flat) const {
  for (const Group& group : groups_) {
    const std::vector<CopyRange>& ranges = group.of_unit[static_cast<std::size_t>(unit)];
    if (ranges.empty()) continue;
    const auto part = [&](const CopyRange& r) { return flat.slice(0, r.begin, r.end - r.begin); };
    if (ranges.size() == 1) {
      group.ranks->all_reduce(part(ranges.front()), part(ranges.front()), ReduceOp::kSum, Traffic::kTensor);
      continue;
    }
    const Tensor packed = tensor_in(packed_, 0, flat.dtype(), {elements_of(ranges)});
    std::int64_t at = 0;
    for (const CopyRange& r : ranges) {
      ops::copy(stream, part(r), packed.slice(0, at, r.end - r.begin));
      at += r.end - r.begin;
    }
    group.ranks->all_reduce(packed, packed, ReduceOp::kSum, Traffic::kTensor);
    at = 0;
    for (const CopyRange& r : ranges) {
      ops::copy(stream, packed.slice(0, at, r.end - r.begin), part(r));
      at += r.end - r.begin;
    }
  }
}

}  // namespace meshtrain::gradsync
