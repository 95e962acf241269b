// Messages between pairs: both ends send a header for each, so both know when they differ. Headers of sends
// come before those of receives, on every rank, and so does the waiting for them: between two ranks they match
// in order.
#include <algorithm>
#include <cstring>
#include <deque>

#include "comm/mpi/communicator.h"

namespace meshtrain::mpi {
namespace {

CommCall call_of(const Tensor& data) {
  return {.op = CommOp::kExchange, .dtype = data.dtype(), .count = data.numel()};
}

std::string describe_end(const Opening::Header& header) {
  std::string text = to_string(header.call);
  if (header.role == Opening::Role::kSends) text += ", sending";
  if (header.role == Opening::Role::kReceives) text += ", receiving";
  return text;
}

// One message of this rank's exchange.
struct Message {
  const Transfer* transfer;
  Opening::Role role;
  Opening out;
  Opening in;
  bool small() const { return transfer->data.bytes() <= Opening::kPayload; }
  bool receives() const { return role == Opening::Role::kReceives; }
};

}  // namespace

void OwnCommunicator::do_exchange(std::span<const Transfer> sends, std::span<const Transfer> receives) {
  session_.check_alive();
  exchange_with_self(sends, receives);
  exchange_with_peers(sends, receives);
}

void OwnCommunicator::exchange_with_self(std::span<const Transfer> sends, std::span<const Transfer> receives) {
  std::deque<Tensor> sent;
  for (const Transfer& send : sends) {
    if (send.peer == rank()) sent.push_back(send.data);
  }
  for (const Transfer& receive : receives) {
    if (receive.peer != rank()) continue;
    const CommCall expected = call_of(receive.data);
    if (sent.empty() || call_of(sent.front()) != expected) {
      session_.fail_and_throw(fmt::format("rank {} of group \"{}\" receives {} from itself, and sends {}",
                                          world_rank(rank()), name(), to_string(expected),
                                          sent.empty() ? "nothing more" : to_string(call_of(sent.front()))));
    }
    if (expected.count > 0) {
      std::memmove(receive.data.raw(), sent.front().raw(), static_cast<std::size_t>(receive.data.bytes()));
    }
    sent.pop_front();
  }
  if (!sent.empty()) {
    session_.fail_and_throw(fmt::format("rank {} of group \"{}\" sends {} to itself, and does not receive it",
                                        world_rank(rank()), name(), to_string(call_of(sent.front()))));
  }
}

void OwnCommunicator::exchange_with_peers(std::span<const Transfer> sends, std::span<const Transfer> receives) {
  const auto messages = std::make_shared<std::vector<Message>>();
  const auto add = [&](std::span<const Transfer> transfers, Opening::Role role) {
    for (const Transfer& transfer : transfers) {
      if (transfer.peer == rank()) continue;
      messages->push_back({.transfer = &transfer, .role = role, .out = {}, .in = {}});
      messages->back().out.header = {.call = call_of(transfer.data), .number = operations_, .role = role};
    }
  };
  add(sends, Opening::Role::kSends);
  add(receives, Opening::Role::kReceives);

  Requests headers;
  Requests data;
  headers.keep(messages);
  const auto expect = [&](Message& message) {
    headers.receive(session_.control(), &message.in, sizeof(Opening), world_rank(message.transfer->peer), tag_);
  };
  for (Message& message : *messages) {  // what the other end sends first
    if (message.receives()) expect(message);
  }
  for (Message& message : *messages) {
    if (!message.receives()) expect(message);
  }
  for (Message& message : *messages) {
    const Transfer& transfer = *message.transfer;
    const std::int64_t inline_bytes = message.small() && !message.receives() ? transfer.data.bytes() : 0;
    if (inline_bytes > 0) {
      std::memcpy(message.out.payload.data(), transfer.data.raw(), static_cast<std::size_t>(inline_bytes));
    }
    headers.send(session_.control(), &message.out,
                 static_cast<std::int64_t>(offsetof(Opening, payload)) + inline_bytes,
                 world_rank(transfer.peer), tag_);
    if (message.small()) continue;
    auto* const bytes = static_cast<std::byte*>(transfer.data.raw());
    message.receives() ? receive_data(data, bytes, transfer.data.bytes(), transfer.peer)
                       : send_data(data, bytes, transfer.data.bytes(), transfer.peer);
  }
  session_.wait_for_headers(headers, [&] {
    return fmt::format("exchange with {} in group \"{}\" ({}), after operation {}: not arrived: {}",
                       rank_list(headers.open_peers()), name(), rank_list(ranks()), operations_,
                       rank_list(headers.open_peers()));
  });
  for (const Message& message : *messages) {
    const Opening::Header& own = message.out.header;
    const Opening::Header& other = message.in.header;
    const Opening::Role opposite = message.receives() ? Opening::Role::kSends : Opening::Role::kReceives;
    if (other.call != own.call || other.role != opposite) {
      session_.fail_and_throw(
          fmt::format("the ends of a message in group \"{}\" ({}) differ: rank {}: {}; rank {}: {}", name(),
                      rank_list(ranks()), world_rank(rank()), describe_end(own),
                      world_rank(message.transfer->peer), describe_end(other)));
    }
    if (message.receives() && message.small() && own.call.count > 0) {
      std::memcpy(message.transfer->data.raw(), message.in.payload.data(),
                  static_cast<std::size_t>(message.transfer->data.bytes()));
    }
  }
  session_.wait_for_data(data, [&] {
    return fmt::format("exchange in group \"{}\" ({}), after operation {}: data still under way from or to {}",
                       name(), rank_list(ranks()), operations_, rank_list(data.open_peers()));
  });
}

}  // namespace meshtrain::mpi
