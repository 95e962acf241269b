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
      queue_(&queue) {
  check(ranks.rank() == background.rank() && ranks.size() == background.size(),
        "both communicators of a tensor group are of the same ranks");
}

TensorGroup TensorGroup::counted_as(Traffic traffic) const {
  TensorGroup other = *this;
  other.traffic_ = traffic;
  return other;
}

std::int64_t TensorGroup::outer_rows(std::int64_t tokens) const {
  if (!part_.sequence_parallel) return tokens;
  check(tokens % part_.ranks == 0, "sequence parallelism cuts tokens evenly");
  return tokens / part_.ranks;
}

Tensor TensorGroup::own_rows(const Tensor& whole) const {
  if (!part_.sequence_parallel) return whole;
  const std::int64_t rows = outer_rows(whole.dim(0));
  return whole.slice(0, rows * part_.rank, rows);
}

SharedRows TensorGroup::allocate(Arena& arena, DType dtype, std::int64_t tokens, std::int64_t n,
                                 bool whole) const {
  if (part_.sequence_parallel && !whole)
    return {.own = arena.allocate(dtype, {outer_rows(tokens), n}), .whole = {}};
  const Tensor all = arena.allocate(dtype, {tokens, n});
  return {.own = own_rows(all), .whole = all};
}

Tensor TensorGroup::gather(const Tensor& x, Arena& arena) const {
  return gather(SharedRows{.own = x, .whole = {}}, arena);
}

Tensor TensorGroup::gather(const SharedRows& x, Arena& arena) const {
  if (!part_.sequence_parallel) return x.own;
  const Tensor whole =
      x.whole.defined() ? x.whole : arena.allocate(x.own.dtype(), {x.own.dim(0) * part_.ranks, x.own.dim(1)});
  ranks_->all_gather(x.own, whole, traffic_);
  return whole;
}

void TensorGroup::reduce(const Tensor& partial, const Tensor& out) const {
  if (alone()) {
    check(partial.raw() == out.raw(), "a rank alone has nothing to reduce into another tensor");
    return;
  }
  reduce_rows(*ranks_, part_.sequence_parallel, partial, out, traffic_);
}

Tensor TensorGroup::reduce(const Tensor& partial) const {
  const Tensor own = own_rows(partial);
  reduce(partial, own);
  return own;
}

TensorGroup::Pending TensorGroup::begin_gather(const SharedRows& x, Arena& arena) const {
  if (!part_.sequence_parallel) return {.result = x.own};
  if (x.whole.defined()) return {.result = x.whole};
  const Tensor whole = arena.allocate(x.own.dtype(), {x.own.dim(0) * part_.ranks, x.own.dim(1)});
  return {.result = whole,
          .ticket = queue_->submit([ranks = background_, traffic = traffic_, own = x.own,
                                    whole](Stream&) { ranks->all_gather(own, whole, traffic); },
                                   "gather rows")};
}

TensorGroup::Pending TensorGroup::begin_reduce(const Tensor& partial) const {
  const Tensor own = own_rows(partial);
  if (alone()) return {.result = own};
  return {.result = own,
          .ticket = queue_->submit([ranks = background_, cut = part_.sequence_parallel, traffic = traffic_,
                                    partial, own](Stream&) { reduce_rows(*ranks, cut, partial, own, traffic); },
                                   "reduce rows")};
}

Tensor TensorGroup::wait(const Pending& pending) const {
  if (pending.ticket > 0) queue_->wait(pending.ticket);
  return pending.result;
}

void TensorGroup::gather_values(const Tensor& own, const Tensor& all) const {
  ranks_->all_gather(own, all, traffic_);
}

}  // namespace meshtrain
