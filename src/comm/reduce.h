// The local half of every reduction: K buffers of one address space into one value an element, by the tree
// that communicator.h promises. All engines that sum by themselves use it, so that they agree to the bit.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "comm/communicator.h"

namespace meshtrain {

// kStreaming goes past the caches: for results that nobody reads before they would be evicted.
enum class Stores : std::uint8_t { kCached, kStreaming };

// out[m][i] = reduction over k of in[k][i], the same for every m, for i in [0, count). Needs one input or
// more; none or more outputs. An output may be one of the inputs (in place), but not overlap one otherwise.
// Pointers need only the alignment of an element. kAvg of integers divides the wrapped sum, towards zero.
// kMin and kMax keep the first of two equal zeros. One thread; the processor's best vectors, the same bits with
// any.
void reduce(std::span<const std::byte* const> in, std::span<std::byte* const> out, std::int64_t count,
            DType dtype, ReduceOp op, Stores stores = Stores::kCached);

// Nothing if they are the same; otherwise they do not overlap.
void copy_bytes(const std::byte* from, std::byte* to, std::int64_t bytes, Stores stores = Stores::kCached);

}  // namespace meshtrain
