#include "comm/communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/trace.h"
#include "comm/ring_bytes.h"

namespace meshtrain {
namespace {

void check_flat(const Tensor& t, std::string_view what) {
  check(t.numel() == 0 || (t.defined() && t.contiguous()), what);
}

std::int64_t sum_of(std::span<const std::int64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

// "6.3 MB".
std::string payload_text(std::int64_t bytes) {
  constexpr std::array<std::string_view, 4> kUnits = {"kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1e3;
  std::size_t unit = 0;
  for (; value >= 999.95 && unit + 1 < kUnits.size(); ++unit) value /= 1e3;
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace

std::string_view name_of(ReduceOp op) {
  constexpr std::array<std::string_view, 4> kNames = {"sum", "avg", "min", "max"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string_view name_of(Traffic traffic) {
  constexpr std::array<std::string_view, kTrafficKinds> kNames = {
      "gradients", "parameters", "tensor", "pipeline", "control", "evaluation", "other"};
  return kNames[static_cast<std::size_t>(traffic)];
}

std::string_view name_of(CommOp op) {
  constexpr std::array<std::string_view, 7> kNames = {
      "barrier", "broadcast", "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "exchange"};
  return kNames[static_cast<std::size_t>(op)];
}

std::string to_string(const CommCall& call) {
  switch (call.op) {
    case CommOp::kBarrier:
      return "barrier";
    case CommOp::kBroadcast:
      return fmt::format("broadcast of {} {} from rank {}", call.count, name_of(call.dtype), call.root);
    case CommOp::kAllReduce:
    case CommOp::kReduceScatter:
      return fmt::format("{} {} of {} {}", name_of(call.op), name_of(call.reduce), call.count,
                         name_of(call.dtype));
    case CommOp::kAllGather:
    case CommOp::kExchange:
      return fmt::format("{} of {} {}", name_of(call.op), call.count, name_of(call.dtype));
    case CommOp::kAllToAll:  // counts differ between ranks
      return fmt::format("{} of {}", name_of(call.op), name_of(call.dtype));
  }
  return {};
}

Communicator::Communicator(std::string name, std::vector<int> ranks, int rank)
    : name_(std::move(name)), ranks_(std::move(ranks)), rank_(rank) {
  check(rank_ >= 0 && rank_ < size(), "a communicator's rank is one of its group");
}

void Communicator::count(Traffic traffic, std::int64_t bytes) {
  stats_.sent[static_cast<std::size_t>(traffic)] += bytes;
  ++stats_.calls[static_cast<std::size_t>(traffic)];
}

// The event of a call with a payload of so many bytes.
TraceSpan Communicator::traced(CommOp op, std::int64_t bytes, TraceKind kind) const {
  if (trace_ == nullptr) return {};
  return {trace_, kind, "{} {} {}", name_of(op), name_, payload_text(bytes)};
}

void Communicator::barrier() {
  count(Traffic::kControl, 0);
  const TraceSpan span = traced(CommOp::kBarrier, 0);
  do_barrier({.op = CommOp::kBarrier});
}

void Communicator::broadcast(const Tensor& data, int root, Traffic traffic) {
  check_flat(data, "broadcast takes contiguous tensors");
  check(root >= 0 && root < size(), "broadcast from a rank outside the group");
  // Along a ring every rank but the last passes the payload on.
  const bool last = (rank_ + 1) % size() == root;
  count(traffic, last ? 0 : data.bytes());
  const TraceSpan span = traced(CommOp::kBroadcast, data.bytes());
  do_broadcast({.op = CommOp::kBroadcast, .dtype = data.dtype(), .root = root, .count = data.numel()}, data);
}

void Communicator::all_reduce(const Tensor& in, const Tensor& out, ReduceOp op, Traffic traffic) {
  check_flat(in, "all-reduce takes contiguous tensors");
  check_flat(out, "all-reduce takes contiguous tensors");
  check(in.numel() == out.numel() && in.dtype() == out.dtype(), "all-reduce of unlike tensors");
  count(traffic, ring_all_reduce_bytes(in.bytes(), size()));
  const TraceSpan span = traced(CommOp::kAllReduce, in.bytes());
  do_all_reduce({.op = CommOp::kAllReduce, .dtype = in.dtype(), .reduce = op, .count = in.numel()}, in, out);
}

void Communicator::reduce_scatter(const Tensor& in, const Tensor& out, ReduceOp op, Traffic traffic) {
  check_flat(in, "reduce-scatter takes contiguous tensors");
  check_flat(out, "reduce-scatter takes contiguous tensors");
  check(in.numel() == out.numel() * size() && in.dtype() == out.dtype(), "reduce-scatter of unlike tensors");
  count(traffic, ring_reduce_scatter_bytes(in.bytes(), size()));
  const TraceSpan span = traced(CommOp::kReduceScatter, in.bytes());
  do_reduce_scatter({.op = CommOp::kReduceScatter, .dtype = in.dtype(), .reduce = op, .count = out.numel()}, in,
                    out);
}

void Communicator::all_gather(const Tensor& in, const Tensor& out, Traffic traffic) {
  check_flat(in, "all-gather takes contiguous tensors");
  check_flat(out, "all-gather takes contiguous tensors");
  check(out.numel() == in.numel() * size() && in.dtype() == out.dtype(), "all-gather of unlike tensors");
  count(traffic, ring_all_gather_bytes(out.bytes(), size()));
  const TraceSpan span = traced(CommOp::kAllGather, out.bytes());
  do_all_gather({.op = CommOp::kAllGather, .dtype = in.dtype(), .count = in.numel()}, in, out);
}

void Communicator::all_to_all(const Tensor& in, std::span<const std::int64_t> send_counts, const Tensor& out,
                              std::span<const std::int64_t> receive_counts, Traffic traffic) {
  check_flat(in, "all-to-all takes contiguous tensors");
  check_flat(out, "all-to-all takes contiguous tensors");
  const auto ranks = static_cast<std::size_t>(size());
  check(send_counts.size() == ranks && receive_counts.size() == ranks,
        "all-to-all takes a count for each rank");
  check(sum_of(send_counts) == in.numel() && sum_of(receive_counts) == out.numel(),
        "all-to-all counts that are not those of its tensors");
  check(in.dtype() == out.dtype(), "all-to-all of unlike tensors");
  const auto self = static_cast<std::size_t>(rank_);
  check(send_counts[self] == receive_counts[self], "all-to-all keeps what it sends to itself");
  count(traffic, (in.numel() - send_counts[self]) * size_of(in.dtype()));
  const TraceSpan span = traced(CommOp::kAllToAll, in.bytes());
  do_all_to_all({.op = CommOp::kAllToAll, .dtype = in.dtype()}, in, send_counts, out, receive_counts);
}

void Communicator::exchange(std::span<const Transfer> sends, std::span<const Transfer> receives,
                            Traffic traffic) {
  std::int64_t bytes = 0;
  for (const std::span<const Transfer> transfers : {sends, receives}) {
    for (const Transfer& transfer : transfers) {
      check_flat(transfer.data, "exchange takes contiguous tensors");
      check(transfer.peer >= 0 && transfer.peer < size(), "exchange with a rank outside the group");
    }
  }
  std::int64_t received = 0;
  for (const Transfer& send : sends) bytes += send.peer == rank_ ? 0 : send.data.bytes();
  for (const Transfer& receive : receives) received += receive.peer == rank_ ? 0 : receive.data.bytes();
  count(traffic, bytes);
  // Who only receives mostly waits.
  const TraceSpan span = traced(CommOp::kExchange, std::max(bytes, received),
                                sends.empty() ? TraceKind::kWait : TraceKind::kCommunication);
  do_exchange(sends, receives);
}

void Communicator::send(const Tensor& data, int peer, Traffic traffic) {
  const Transfer message = {.peer = peer, .data = data};
  exchange({&message, 1}, {}, traffic);
}

void Communicator::receive(const Tensor& data, int peer, Traffic traffic) {
  const Transfer message = {.peer = peer, .data = data};
  exchange({}, {&message, 1}, traffic);
}

}  // namespace meshtrain
