// Threads of the CPU back end.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/stream.h"

namespace meshtrain::ops::cpu {

// Work below this many bytes is not worth waking a thread for.
inline constexpr std::int64_t kBytesPerThread = 128 * 1024;
inline constexpr std::int64_t kRangesPerThread = 4;

// Calls body(begin, end) on ranges that together are [0, count), on up to stream.threads() threads; no
// more than work of `bytes` in all can feed. A result must not depend on where the cuts fall. `body`
// must not throw.
template <class Body>
void parallel_ranges(const Stream& stream, std::int64_t count, std::int64_t bytes, const Body& body) {
  const std::int64_t threads = std::min<std::int64_t>({stream.threads(), count, bytes / kBytesPerThread + 1});
  if (count <= 0) return;
  if (threads <= 1) {
    body(std::int64_t{0}, count);
    return;
  }
  // More ranges than threads, so that one on a busy core does not hold up the others for long.
  const std::int64_t ranges = std::min(count, threads * kRangesPerThread);
  stream.pool().run(ranges, static_cast<int>(threads),
                    [&](std::int64_t range) { body(count * range / ranges, count * (range + 1) / ranges); });
}

// The same for `count` elements of a flat tensor, cut at multiples of a few cache lines.
template <class Body>
void parallel_elements(const Stream& stream, std::int64_t count, std::int64_t bytes, const Body& body) {
  constexpr std::int64_t kBlock = 256;
  parallel_ranges(stream, (count + kBlock - 1) / kBlock, bytes, [&](std::int64_t begin, std::int64_t end) {
    body(begin * kBlock, std::min(end * kBlock, count));
  });
}

}  // namespace meshtrain::ops::cpu
