#include "comm/mpi/communicator.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "comm/reduce.h"

namespace meshtrain::mpi {
namespace {

// A piece under way, from each of the others: small enough for the caches together, large enough for the
// library.
constexpr std::int64_t kPiecesUnderWay = std::int64_t{512} << 10U;
constexpr std::int64_t kSmallestPiece = std::int64_t{64} << 10U;

std::byte* bytes_of(const Tensor& tensor) {
  return static_cast<std::byte*>(tensor.raw());
}

std::span<const std::byte> span_of(const std::byte* data, std::int64_t bytes) {
  return {data, static_cast<std::size_t>(bytes)};
}

}  // namespace

OwnCommunicator::OwnCommunicator(Session& session, std::string name, std::vector<int> ranks, int rank, int tag)
    : Communicator(std::move(name), std::move(ranks), rank),
      session_(session),
      tag_(tag),
      outgoing_(std::make_shared<Openings>(static_cast<std::size_t>(size()))),
      incoming_(std::make_shared<Openings>(static_cast<std::size_t>(size()))) {}

std::string OwnCommunicator::describe(const CommCall& call) const {
  return fmt::format("{}, operation {} of group \"{}\" ({})", to_string(call), operations_, name(),
                     rank_list(ranks()));
}

void OwnCommunicator::meet(const CommCall& call, const PayloadFor& payload,
                           std::span<const std::int64_t> elements_to,
                           std::span<const std::int64_t> elements_from) {
  session_.check_alive();
  ++operations_;
  Requests requests;
  requests.keep(outgoing_);
  requests.keep(incoming_);
  each_peer([&](int peer) {
    requests.receive(session_.control(), &incoming(peer), sizeof(Opening), world_rank(peer), tag_);
  });
  each_peer([&](int peer) {
    const auto p = static_cast<std::size_t>(peer);
    Opening& opening = (*outgoing_)[p];
    opening.header = {.call = call, .number = operations_};
    if (!elements_to.empty()) {
      opening.header.elements_to = elements_to[p];
      opening.header.elements_from = elements_from[p];
    }
    const std::span<const std::byte> bytes = payload ? payload(peer) : std::span<const std::byte>{};
    std::copy(bytes.begin(), bytes.end(), opening.payload.begin());
    requests.send(session_.control(), &opening,
                  static_cast<std::int64_t>(offsetof(Opening, payload) + bytes.size()), world_rank(peer), tag_);
  });
  session_.wait_for_headers(requests, [&] {
    const std::vector<int> missing = requests.open_receives();
    std::vector<int> arrived;
    std::copy_if(ranks().begin(), ranks().end(), std::back_inserter(arrived),
                 [&](int r) { return std::find(missing.begin(), missing.end(), r) == missing.end(); });
    return fmt::format("{}: arrived: {}; not arrived: {}", describe(call), rank_list(arrived),
                       missing.empty() ? "none" : rank_list(missing));
  });
  compare(call);
  if (!elements_to.empty()) compare_counts(elements_to, elements_from);
}

void OwnCommunicator::compare(const CommCall& call) {
  bool same = true;
  each_peer([&](int peer) {
    const Opening::Header& header = incoming(peer).header;
    same = same && header.call == call && header.number == operations_ &&
           header.role == Opening::Role::kCollective;
  });
  if (same) return;
  std::map<std::string, std::vector<int>> callers;
  for (int r = 0; r < size(); ++r) {
    callers[to_string(r == rank() ? call : incoming(r).header.call)].push_back(world_rank(r));
  }
  std::string text;
  for (const auto& [what, who] : callers) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", rank_list(who), what);
  }
  session_.fail_and_throw(fmt::format("the ranks of group \"{}\" ({}) call different operations, number {}: {}",
                                      name(), rank_list(ranks()), operations_, text));
}

void OwnCommunicator::compare_counts(std::span<const std::int64_t> to, std::span<const std::int64_t> from) {
  each_peer([&](int peer) {
    const auto p = static_cast<std::size_t>(peer);
    const Opening::Header& header = incoming(peer).header;
    const auto differ = [&](int sender, std::int64_t sent, int receiver, std::int64_t expected) {
      session_.fail_and_throw(fmt::format("{}: rank {} sends {} elements to rank {}, which expects {}",
                                          describe(header.call), world_rank(sender), sent, world_rank(receiver),
                                          expected));
    };
    if (header.elements_to != from[p]) differ(peer, header.elements_to, rank(), from[p]);
    if (header.elements_from != to[p]) differ(rank(), to[p], peer, header.elements_from);
  });
}

void OwnCommunicator::wait_for_data(Requests& requests, const CommCall& call) {
  session_.wait_for_data(requests, [&] {
    return fmt::format("{}: all ranks arrived; data still under way from or to {}", describe(call),
                       rank_list(requests.open_peers()));
  });
}

void OwnCommunicator::send_data(Requests& requests, const std::byte* data, std::int64_t bytes, int peer) {
  requests.send(session_.data(), data, bytes, world_rank(peer), tag_);
}

void OwnCommunicator::receive_data(Requests& requests, std::byte* data, std::int64_t bytes, int peer) {
  requests.receive(session_.data(), data, bytes, world_rank(peer), tag_);
}

void OwnCommunicator::reduce_openings(const CommCall& call, const std::byte* own, std::byte* out,
                                      std::int64_t count) {
  std::vector<const std::byte*> inputs;
  for (int r = 0; r < size(); ++r) inputs.push_back(r == rank() ? own : incoming(r).payload.data());
  reduce(inputs, {{out}}, count, call.dtype, call.reduce);
}

// Two pieces are under way: the next one comes in while this one is summed.
void OwnCommunicator::reduce_pieces(const CommCall& call, const std::byte* in, const Pieces& pieces,
                                    std::byte* out) {
  const std::int64_t slot = std::max(kSmallestPiece, kPiecesUnderWay / std::max(1, size() - 1)) / 64 * 64;
  const std::int64_t step = slot / pieces.element;                // elements
  const std::int64_t steps = (pieces.size(0) + step - 1) / step;  // no piece is larger than the first
  if (size() > 1 && !scratch_) {
    scratch_ = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(2 * (size() - 1) * slot));
  }
  const auto slot_of = [&](std::int64_t s, int peer) {
    return scratch_->data() + (s % 2 * (size() - 1) + (peer < rank() ? peer : peer - 1)) * slot;
  };
  const auto bytes_in_step = [&](std::int64_t s, std::int64_t piece) {
    return std::clamp<std::int64_t>(pieces.size(piece) - s * step, 0, step) * pieces.element;
  };
  std::array<std::optional<Requests>, 2> under_way;
  const auto post = [&](std::int64_t s) {
    Requests& requests = under_way[static_cast<std::size_t>(s % 2)].emplace();
    requests.keep(scratch_);
    each_peer([&](int peer) { receive_data(requests, slot_of(s, peer), bytes_in_step(s, rank()), peer); });
    each_peer([&](int peer) {
      send_data(requests, in + pieces.offset(peer) + s * step * pieces.element, bytes_in_step(s, peer), peer);
    });
  };
  if (steps > 0) post(0);
  for (std::int64_t s = 0; s < steps; ++s) {
    if (s + 1 < steps) post(s + 1);
    wait_for_data(*under_way[static_cast<std::size_t>(s % 2)], call);
    const std::int64_t at = s * step * pieces.element;
    std::vector<const std::byte*> inputs;
    for (int r = 0; r < size(); ++r) {
      inputs.push_back(r == rank() ? in + pieces.offset(rank()) + at : slot_of(s, r));
    }
    reduce(inputs, {{out + at}}, bytes_in_step(s, rank()) / pieces.element, call.dtype, call.reduce);
  }
}

void OwnCommunicator::gather_pieces(const CommCall& call, std::byte* whole, const Pieces& pieces, int skip) {
  Requests requests;
  each_peer([&](int peer) {
    if (rank() != skip) receive_data(requests, whole + pieces.offset(peer), pieces.bytes(peer), peer);
  });
  each_peer([&](int peer) {
    if (peer != skip) send_data(requests, whole + pieces.offset(rank()), pieces.bytes(rank()), peer);
  });
  wait_for_data(requests, call);
}

void OwnCommunicator::do_barrier(const CommCall& call) {
  meet(call, {});
}

void OwnCommunicator::do_broadcast(const CommCall& call, const Tensor& data) {
  const bool root = rank() == call.root;
  const bool small = data.bytes() <= Opening::kPayload;
  meet(call, [&](int) { return span_of(bytes_of(data), root && small ? data.bytes() : 0); });
  if (size() == 1) return;
  if (small) {
    if (!root) copy_bytes(incoming(call.root).payload.data(), bytes_of(data), data.bytes());
    return;
  }
  const Pieces pieces = pieces_of(data);
  Requests scatter;
  if (!root) receive_data(scatter, bytes_of(data) + pieces.offset(rank()), pieces.bytes(rank()), call.root);
  each_peer([&](int peer) {
    if (root) send_data(scatter, bytes_of(data) + pieces.offset(peer), pieces.bytes(peer), peer);
  });
  wait_for_data(scatter, call);
  gather_pieces(call, bytes_of(data), pieces, call.root);
}

void OwnCommunicator::do_all_reduce(const CommCall& call, const Tensor& in, const Tensor& out) {
  if (in.bytes() <= Opening::kPayload) {
    meet(call, [&](int) { return span_of(bytes_of(in), in.bytes()); });
    return reduce_openings(call, bytes_of(in), bytes_of(out), in.numel());
  }
  meet(call, {});
  const Pieces pieces = pieces_of(in);
  reduce_pieces(call, bytes_of(in), pieces, bytes_of(out) + pieces.offset(rank()));
  gather_pieces(call, bytes_of(out), pieces, -1);
}

void OwnCommunicator::do_reduce_scatter(const CommCall& call, const Tensor& in, const Tensor& out) {
  const Pieces pieces = pieces_of(in);
  if (out.bytes() <= Opening::kPayload) {
    meet(call, [&](int peer) { return span_of(bytes_of(in) + pieces.offset(peer), pieces.bytes(peer)); });
    return reduce_openings(call, bytes_of(in) + pieces.offset(rank()), bytes_of(out), out.numel());
  }
  meet(call, {});
  reduce_pieces(call, bytes_of(in), pieces, bytes_of(out));
}

void OwnCommunicator::do_all_gather(const CommCall& call, const Tensor& in, const Tensor& out) {
  const Pieces pieces = pieces_of(out);
  const bool small = in.bytes() <= Opening::kPayload;
  meet(call, [&](int) { return span_of(bytes_of(in), small ? in.bytes() : 0); });
  copy_bytes(bytes_of(in), bytes_of(out) + pieces.offset(rank()), in.bytes());
  if (!small) return gather_pieces(call, bytes_of(out), pieces, -1);
  each_peer([&](int peer) {
    copy_bytes(incoming(peer).payload.data(), bytes_of(out) + pieces.offset(peer), in.bytes());
  });
}

void OwnCommunicator::do_all_to_all(const CommCall& call, const Tensor& in,
                                    std::span<const std::int64_t> send_counts, const Tensor& out,
                                    std::span<const std::int64_t> receive_counts) {
  const std::int64_t element = size_of(in.dtype());
  struct Part {
    std::byte* data;
    std::int64_t bytes;
    bool small() const { return bytes <= Opening::kPayload; }
  };
  const auto parts_of = [&](const Tensor& tensor, std::span<const std::int64_t> counts) {
    std::vector<Part> parts;
    std::int64_t at = 0;
    for (const std::int64_t count : counts) {
      parts.push_back({bytes_of(tensor) + at, count * element});
      at += count * element;
    }
    return parts;
  };
  const std::vector<Part> to = parts_of(in, send_counts);
  const std::vector<Part> from = parts_of(out, receive_counts);
  meet(
      call,
      [&](int peer) {
        const Part& part = to[static_cast<std::size_t>(peer)];
        return span_of(part.data, part.small() ? part.bytes : 0);
      },
      send_counts, receive_counts);
  Requests requests;
  each_peer([&](int peer) {
    const Part& part = from[static_cast<std::size_t>(peer)];
    if (part.small()) {
      copy_bytes(incoming(peer).payload.data(), part.data, part.bytes);
    } else {
      receive_data(requests, part.data, part.bytes, peer);
    }
  });
  each_peer([&](int peer) {
    const Part& part = to[static_cast<std::size_t>(peer)];
    if (!part.small()) send_data(requests, part.data, part.bytes, peer);
  });
  const auto self = static_cast<std::size_t>(rank());
  copy_bytes(to[self].data, from[self].data, to[self].bytes);
  wait_for_data(requests, call);
}

}  // namespace meshtrain::mpi
