// The updates of torch.optim on flat fp32 tensors of one length, bit for bit as PyTorch's float32 CPU
// kernels compute them on a processor with AVX2 or AVX-512, square roots correctly rounded (the order of
// operations and each rounding are part of the contract; see docs/numerics.md). The bits depend
// neither on the instruction set nor on how the tensors are cut into calls or threads. A 16-bit `gradient` is
// converted to fp32, which is exact; then it is multiplied by `gradient_scale` (clipping, loss scaling; 1
// leaves its bits alone). When `weight` is defined (bf16 or fp16), the updated master is also written to it,
// rounded.
#pragma once

#include "device/stream.h"
#include "device/tensor.h"

namespace meshtrain::ops {

struct UpdateTensors {
  Tensor master;    // fp32, updated in place
  Tensor gradient;  // fp32, bf16 or fp16, read
  Tensor weight;    // optional, 16-bit copy of master
  float gradient_scale = 1.0F;
};

struct SgdUpdate {
  double lr = 0.0;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  bool first_step = false;  // the momentum buffer starts as the gradient itself
};
// `velocity` is undefined when momentum is 0.
void sgd_update(Stream& stream, const UpdateTensors& t, const Tensor& velocity, const SgdUpdate& u);

struct AdagradUpdate {
  double lr = 0.0;
  double lr_decay = 0.0;
  double weight_decay = 0.0;
  double epsilon = 1e-10;
  std::int64_t step = 1;  // counts from 1
};
void adagrad_update(Stream& stream, const UpdateTensors& t, const Tensor& sum, const AdagradUpdate& u);

struct RmsPropUpdate {
  double lr = 0.0;
  double alpha = 0.99;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.0;
};
// `velocity` is undefined when momentum is 0.
void rmsprop_update(Stream& stream, const UpdateTensors& t, const Tensor& square_average,
                    const Tensor& velocity, const RmsPropUpdate& u);

struct AdamUpdate {
  double lr = 0.0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.0;
  bool decoupled = true;  // true: AdamW (Loshchilov & Hutter 2019); false: Adam with L2
  std::int64_t step = 1;  // counts from 1
};
void adam_update(Stream& stream, const UpdateTensors& t, const Tensor& m, const Tensor& v, const AdamUpdate& u);

}  // namespace meshtrain::ops
