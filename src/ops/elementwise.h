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

// Any dtype.
void fill(Stream& stream, const Tensor& out, float value);

// Makes the system give the memory of `out`, which nobody has written since the device allocated it: each page
// at its first write, by one of the threads that will use it. The zeros in it stay. What is read before it is
// written would otherwise be mapped twice.
void touch(Stream& stream, const Tensor& out);

// x *= factor; fp32.
void scale(Stream& stream, const Tensor& x, float factor);

// out[i] = mean + deviation * random.normal(first_index + i); fp32.
void fill_normal(Stream& stream, const Tensor& out, const RandomStream& random, std::int64_t first_index,
                 float mean, float deviation);

// Sum in order, in double, of an fp32 tensor: one addition after the other. 0 on `sim`.
double sum(Stream& stream, const Tensor& x);

}  // namespace meshtrain::ops
