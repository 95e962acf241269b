// Weights between the types that files hold and fp32, so that what was widened narrows to the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/dtype.h"

namespace meshtrain {

// Whether weights may have this type: fp32, bf16 or fp16.
bool is_weight_dtype(DType dtype);

// Bits of a NaN (quiet or signalling), of -0 and of subnormals are kept. `from` holds to.size() elements and
// may be unaligned.
void widen(DType dtype, std::span<const std::byte> from, std::span<float> to);

// The inverse of widen() for every value that it gives; any other is rounded to nearest even. Returns the index
// of the first finite element that `dtype` cannot hold, if any.
std::optional<std::size_t> narrow(std::span<const float> from, DType dtype, std::span<std::byte> to);

}  // namespace meshtrain
