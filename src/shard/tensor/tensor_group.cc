#include "shard/tensor/tensor_group.h"

#include "base/error.h"

namespace meshtrain {
namespace {

void reduce_rows(Communicator& ranks, bool sequence_parallel, const Tensor& partial, const Tensor& out,
                 Traffic traffic) {
  if (sequence_parallel) {
    ranks.reduce_scatter(partial, out, ReduceOp::kSum, traffic);
  } else {
    ranks.all_reduce(partial, out, ReduceOp::kSum, traffic);
  }
}

}  // namespace

TensorGroup::TensorGroup(Communicator& ranks, Communicator& background, CommQueue& queue,
                         bool sequence_parallel)
    : part_{.ranks = ranks.size(),
            .rank = ranks.rank(),
            .sequence_parallel = sequence_parallel && ranks.size() > 1},
      ranks_(&ranks),
      background_(&background),
      queue_(&queue) {}

TensorGroup TensorGroup::counted_as(Traffic traffic) const {
  TensorGroup other = *this;
  other.traffic_ = traffic;
  return other;
}

Tensor TensorGroup::gather(const Tensor& x, Arena& arena) const {
  if (!part_.sequence_parallel) return x;
  const Tensor whole = arena.allocate(x.dtype(), {x.dim(0) * part_.ranks, x.dim(1)});
  ranks_->all_gather(x, whole, traffic_);
  return whole;
}

void TensorGroup::reduce(const Tensor& partial, const Tensor& out) const {
  if (alone()) {
    check(partial.raw() == out.raw(), "a rank alone has nothing to reduce into another tensor");
    return;
  }
  reduce_rows(*ranks_, part_.sequence_parallel, partial, out, traffic_);
}

TensorGroup::Ticket TensorGroup::begin_gather(const Tensor& x, const Tensor& whole) const {
  check(part_.sequence_parallel, "only rows that are cut are gathered");
  return queue_->submit(
      [ranks = background_, traffic = traffic_, x, whole](Stream&) { ranks->all_gather(x, whole, traffic); },
      "gather rows");
}

TensorGroup::Ticket TensorGroup::begin_reduce(const Tensor& partial, const Tensor& out) const {
  check(!alone(), "a rank alone has nothing to reduce");
  return queue_->submit([ranks = background_, cut = part_.sequence_parallel, traffic = traffic_, partial,
                         out](Stream&) { reduce_rows(*ranks, cut, partial, out, traffic); },
                        "reduce rows");
}

void TensorGroup::wait(Ticket ticket) const {
  queue_->wait(ticket);
}

void TensorGroup::gather_values(const Tensor& own, const Tensor& all) const {
  ranks_->all_gather(own, all, traffic_);
}

}  // namespace meshtrain
