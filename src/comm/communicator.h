// Collectives on a group of ranks.
//
// Values: a sum over K ranks is the fixed pairwise tree in rank order: neighbours are added, (0+1), (2+3), …,
// an odd one out moves up as it is, until one value is left. fp32, bf16 and fp16 are added in fp32 and
// rounded once at the end; fp64 in fp64; integers wrap. kAvg divides the sum by K before rounding. kMin
// and kMax give NaN when any rank has one. So every rank has the same bits, whatever the engine, the
// collective, its chunking and who computes an element.
//
// Buffers: tensors are contiguous host memory of one dtype. Each collective may run in place, as said below;
// otherwise `in` and `out` must not overlap. Counts of zero are calls like any other.
//
// Order: all ranks of a group call the same operations in the same order. A call returns when this rank's
// `out` is complete and `in` may change. One thread at a time uses a communicator; different communicators
// work at the same time, also from different threads. CommQueue runs calls in the background.
//
// Errors: CommError, on every rank of the group, never a hang:
//  - calls that differ (operation, dtype, count, reduction, root) say which rank called what;
//  - what does not finish within the deadline names the operation, its number in the group, the group,
//    which ranks had arrived and which had not;
//  - a rank that died or left is named within two seconds.
// After an error the communicator, and every other of its world, only throws.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/trace.h"
#include "device/tensor.h"

namespace meshtrain {

class CommError : public RunError {
 public:
  using RunError::RunError;
};

enum class ReduceOp : std::uint8_t { kSum, kAvg, kMin, kMax };
std::string_view name_of(ReduceOp op);

// What a call is for; bytes are counted apart.
enum class Traffic : std::uint8_t {
  kGradients,
  kParameters,  // of training steps
  kTensor,      // within layers, between tensor-parallel ranks
  kPipeline,    // between stages
  kControl,     // token counts, losses, norms
  kEvaluation,
  kOther,  // starting, stopping, checkpoints, summaries
};
inline constexpr std::size_t kTrafficKinds = 7;
std::string_view name_of(Traffic traffic);

struct CommStats {
  // Bytes that this rank sends by the formulas of ring algorithms (ring_bytes.h), whatever the engine does.
  std::array<std::int64_t, kTrafficKinds> sent{};
  std::array<std::int64_t, kTrafficKinds> calls{};
  std::int64_t sent_for(Traffic t) const { return sent[static_cast<std::size_t>(t)]; }
  friend CommStats operator+(CommStats a, const CommStats& b) {
    for (std::size_t i = 0; i < kTrafficKinds; ++i) a.sent[i] += b.sent[i], a.calls[i] += b.calls[i];
    return a;
  }
};

enum class CommOp : std::uint8_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kExchange,
};
std::string_view name_of(CommOp op);

// What the ranks of a group must agree on. Compared between ranks, so it holds no pointers.
struct CommCall {
  CommOp op = CommOp::kBarrier;
  DType dtype = DType::kU8;
  ReduceOp reduce = ReduceOp::kSum;
  std::int32_t root = 0;
  std::int64_t count = 0;  // elements: of `in` (all-gather, all-reduce, broadcast), of `out` (reduce-scatter)
  friend bool operator==(const CommCall&, const CommCall&) = default;
};
// "all-reduce sum of 1024 fp32".
std::string to_string(const CommCall& call);

// One message of an exchange; `peer` is a rank of the group.
struct Transfer {
  int peer = 0;
  Tensor data;
};

class Communicator {
 public:
  // `ranks`: the world ranks of the group, in group order.
  Communicator(std::string name, std::vector<int> ranks, int rank);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;  // never communicates

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(ranks_.size()); }
  const std::string& name() const { return name_; }
  const std::vector<int>& ranks() const { return ranks_; }
  const CommStats& stats() const { return stats_; }

  // Calls show on this track, that of the thread which makes them; null: nowhere. Not during a call. A group of
  // one rank communicates nothing, and shows none.
  void set_trace(TraceTrack* track) { trace_ = size() > 1 ? track : nullptr; }

  // Returns when every rank has called it.
  void barrier();
  // root's data to all.
  void broadcast(const Tensor& data, int root, Traffic traffic = Traffic::kControl);
  // out[i] = over all ranks in[i]. In place: in is out.
  void all_reduce(const Tensor& in, const Tensor& out, ReduceOp op, Traffic traffic = Traffic::kControl);
  // in [size·n] → out [n]: piece `rank` of the reduction. In place: out is piece `rank` of in.
  void reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, Traffic traffic = Traffic::kControl);
  // in [n] → out [size·n], in rank order. In place: in is piece `rank` of out.
  void all_gather(const Tensor& in, const Tensor& out, Traffic traffic = Traffic::kControl);
  // Elements for rank 0, then for rank 1, … of `in` (send_counts), received in rank order (receive_counts).
  // Never in place.
  void all_to_all(const Tensor& in, std::span<const std::int64_t> send_counts, const Tensor& out,
                  std::span<const std::int64_t> receive_counts, Traffic traffic = Traffic::kControl);
  // All messages at once, in any pattern without deadlock; between two ranks they match in order. Only
  // the ranks named take part. Sizes and dtypes of both ends must agree.
  void exchange(std::span<const Transfer> sends, std::span<const Transfer> receives,
                Traffic traffic = Traffic::kControl);
  // An exchange of one message.
  void send(const Tensor& data, int peer, Traffic traffic);
  void receive(const Tensor& data, int peer, Traffic traffic);

 protected:
  // Arguments are checked. `call` is what must be compared with the other ranks. A group may have one rank.
  virtual void do_barrier(const CommCall& call) = 0;
  virtual void do_broadcast(const CommCall& call, const Tensor& data) = 0;
  virtual void do_all_reduce(const CommCall& call, const Tensor& in, const Tensor& out) = 0;
  virtual void do_reduce_scatter(const CommCall& call, const Tensor& in, const Tensor& out) = 0;
  virtual void do_all_gather(const CommCall& call, const Tensor& in, const Tensor& out) = 0;
  virtual void do_all_to_all(const CommCall& call, const Tensor& in, std::span<const std::int64_t> send_counts,
                             const Tensor& out, std::span<const std::int64_t> receive_counts) = 0;
  virtual void do_exchange(std::span<const Transfer> sends, std::span<const Transfer> receives) = 0;

 private:
  void count(Traffic traffic, std::int64_t bytes);
  TraceSpan traced(CommOp op, std::int64_t bytes, TraceKind kind = TraceKind::kCommunication) const;

  std::string name_;
  std::vector<int> ranks_;
  int rank_;
  CommStats stats_;
  TraceTrack* trace_ = nullptr;
};

}  // namespace meshtrain
