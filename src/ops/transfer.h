// Copies between host memory and a device. Nothing moves on a simulated device.
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

// `host` holds to.bytes() bytes; `to` is contiguous.
void copy_from_host(Stream& stream, const void* host, const Tensor& to);
void copy_to_host(Stream& stream, const Tensor& from, void* host);

// Between device tensors of one dtype and shape; all but the innermost dimension may be strided.
void copy(Stream& stream, const Tensor& from, const Tensor& to);
}  // namespace meshtrain::ops
