// One rank's place among the ranks that share every layer of a model (tensor parallelism, Shoeybi et al. 2019,
// "Megatron-LM", section 3), and what they exchange.
//
// A layer cuts its first matrix by output columns and its second by input columns, so that each rank computes
// whole attention heads, or a part of the feed-forward, and the second product leaves a partial sum.
// Activations [rows, n] have two layouts:
//   inner: every token of the micro-batch, on every rank: what the cut matrices read;
//   outer: the residual stream. With sequence parallelism (Korthikanti et al. 2022, section 4.2.2) a rank holds
//          tokens [rank·T/size, (rank + 1)·T/size) of the T of the micro-batch, and norms and additions run on
//          them alone; without it, all of them on every rank.
// gather() leads from outer to inner, reduce() from partial sums in inner to outer; the backward pass of either
// is the other.
#pragma once

#include <cstdint>

#include "comm/comm_queue.h"
#include "comm/communicator.h"
#include "device/arena.h"

namespace meshtrain {

// What the shapes of a rank's weights depend on.
struct TensorPart {
  int ranks = 1;
  int rank = 0;
  bool sequence_parallel = false;  // false where there is one rank
};

// An activation in both layouts. Where the outer one is every token, both are one tensor.
struct SharedRows {
  Tensor own;    // outer [outer rows, n]
  Tensor whole;  // inner [tokens, n]; undefined where it is gathered again when it is needed
};

class TensorGroup {
 public:
  // A rank alone: inner and outer are one, and nothing is communicated.
  TensorGroup() = default;
  // Both outlive it. `queue` runs what overlaps with computation, in calls of another communicator of the same
  // ranks (`background`), in the order of the calls.
  TensorGroup(Communicator& ranks, Communicator& background, CommQueue& queue, bool sequence_parallel);

  // The same ranks, whose bytes count as `traffic` instead of Traffic::kTensor.
  TensorGroup counted_as(Traffic traffic) const;

  const TensorPart& part() const { return part_; }
  bool alone() const { return part_.ranks == 1; }
  // Rows of the outer layout; `tokens` must be a multiple of the ranks with sequence parallelism.
  std::int64_t outer_rows(std::int64_t tokens) const;
  // The rows of an inner tensor that the outer layout holds here.
  Tensor own_rows(const Tensor& whole) const;

  // Memory for an activation [tokens, n] whose own rows are about to be computed: with `whole` also for those
  // of the others, the own ones in their place among them.
  SharedRows allocate(Arena& arena, DType dtype, std::int64_t tokens, std::int64_t n, bool whole) const;

  // x [outer rows, n] → [tokens, n]: x itself, or gathered into `arena`. Contiguous.
  Tensor gather(const Tensor& x, Arena& arena) const;
  // The same, into x.whole where there is one.
  Tensor gather(const SharedRows& x, Arena& arena) const;
  // Sums partial [tokens, n] over ranks (fp32, rounded once) into out [outer rows, n], contiguous. `out` may be
  // partial itself, or its rows of this rank with sequence parallelism. A rank alone: out is partial.
  void reduce(const Tensor& partial, const Tensor& out) const;
  // In place: returns own_rows(partial).
  Tensor reduce(const Tensor& partial) const;

  // The same in the background: neither operand nor result are touched before wait(), which returns the result.
  struct Pending {
    Tensor result;
    CommQueue::Ticket ticket = 0;  // 0: there was nothing to do
  };
  // x.whole where it was kept; else it is gathered again.
  Pending begin_gather(const SharedRows& x, Arena& arena) const;
  Pending begin_reduce(const Tensor& partial) const;
  Tensor wait(const Pending& pending) const;

  // every rank's values in rank order: [n] → [ranks, n], flat.
  void gather_values(const Tensor& own, const Tensor& all) const;

 private:
  TensorPart part_;
  Communicator* ranks_ = nullptr;
  Communicator* background_ = nullptr;
  CommQueue* queue_ = nullptr;
  Traffic traffic_ = Traffic::kTensor;
};

}  // namespace meshtrain
