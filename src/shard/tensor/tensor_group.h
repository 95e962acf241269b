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
  std::int64_t outer_rows(std::int64_t tokens) const {
    return part_.sequence_parallel ? tokens / part_.ranks : tokens;
  }

  // x [outer rows, n] → [tokens, n]: x itself, or gathered into `arena`. Contiguous.
  Tensor gather(const Tensor& x, Arena& arena) const;
  // Sums partial [tokens, n] over ranks (fp32, rounded once) into out [outer rows, n], contiguous. `out` may be
  // partial itself, or its rows of this rank with sequence parallelism.
  void reduce(const Tensor& partial, const Tensor& out) const;

  // The same in the background. Operands are not touched before wait(), which returns when all is done.
  using Ticket = CommQueue::Ticket;
  Ticket begin_gather(const Tensor& x, const Tensor& whole) const;
  Ticket begin_reduce(const Tensor& partial, const Tensor& out) const;
  void wait(Ticket ticket) const;

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
