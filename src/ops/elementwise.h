// Small operations over flat tensors. Contiguous unless said otherwise.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

// out = a + b, one dtype (fp32, bf16, fp16); out may alias either.
void add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out);

// to = from, rounded to nearest even; fp32, bf16, fp16 in any combination.
void cast(Stream& stream, const Tensor& from, const Tensor& to);

void fill(Stream& stream, const Tensor& out, float value);

// x *= factor; fp32.
void scale(Stream& stream, const Tensor& x, float factor);

// out[i] = mean + deviation * random.normal(first_index + i); fp32.
void fill_normal(Stream& stream, const Tensor& out, const RandomStream& random, std::int64_t first_index,
                 float mean, float deviation);

// Sum of squares of an fp32 tensor: over fixed blocks of kNormBlock elements in a fixed order inside
// a block, the blocks then in order, in double. Not finite when any element is not.
inline constexpr std::int64_t kNormBlock = 4096;
double sum_of_squares(Stream& stream, const Tensor& x);

// Sum in order, in double, of an fp32 tensor.
double sum(Stream& stream, const Tensor& x);

}  // namespace meshtrain::ops
