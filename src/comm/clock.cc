#include "comm/clock.h"

#include <array>
#include <cmath>
#include <optional>

namespace meshtrain {
namespace {

constexpr int kRoundTrips = 16;

void send(Communicator& ranks, int peer, std::int64_t value) {
  ranks.send(Tensor(&value, DType::kI64, {1}), peer, Traffic::kOther);
}

std::int64_t receive(Communicator& ranks, int peer) {
  std::int64_t value = 0;
  ranks.receive(Tensor(&value, DType::kI64, {1}), peer, Traffic::kOther);
  return value;
}

void answer(Communicator& ranks, int peer, const NanosecondClock& clock) {
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    receive(ranks, peer);
    send(ranks, peer, clock());
  }
}

ClockOffset ask(Communicator& ranks, const NanosecondClock& clock) {
  std::optional<ClockOffset> best;
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    const std::int64_t asked = clock();
    send(ranks, 0, 0);
    const std::int64_t there = receive(ranks, 0);
    const std::int64_t error = (clock() - asked + 1) / 2;
    if (best && best->error_ns <= error) continue;
    best = {.at_ns = asked + error, .offset_ns = there - (asked + error), .error_ns = error};
  }
  return *best;
}

}  // namespace

ClockOffset clock_offset(Communicator& ranks, const NanosecondClock& clock) {
  if (ranks.rank() > 0) return ask(ranks, clock);
  for (int peer = 1; peer < ranks.size(); ++peer) answer(ranks, peer, clock);
  return {.at_ns = clock()};
}

std::int64_t ClockLine::of_rank0(std::int64_t own_ns) const {
  const std::int64_t apart = last_.at_ns - first_.at_ns;
  if (apart <= 0) return own_ns + first_.offset_ns;
  const double part = static_cast<double>(own_ns - first_.at_ns) / static_cast<double>(apart);
  return own_ns + first_.offset_ns +
         std::llround(part * static_cast<double>(last_.offset_ns - first_.offset_ns));
}

}  // namespace meshtrain
