#include "ops/optimizer_update.h"

#include <initializer_list>

#include "ops/checks.h"
#include "ops/cpu/optimizer_update.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {
namespace {

// Checks all tensors of one update; each element is read once and, but for the gradient, written once.
OpCost check_and_cost(const UpdateTensors& t, std::initializer_list<const Tensor*> states) {
  const std::int64_t count = t.master.numel();
  const auto is_flat_f32 = [count](const Tensor& x) {
    return x.dtype() == DType::kF32 && x.numel() == count && x.contiguous();
  };
  check(is_flat_f32(t.master), "optimizer update: master");
  check(is_float(t.gradient.dtype()) && t.gradient.numel() == count && t.gradient.contiguous(),
        "optimizer update: gradient");
  std::int64_t bytes = 2 * t.master.bytes() + t.gradient.bytes();
  if (t.weight.defined()) {
    check(t.weight.dtype() == DType::kBF16 || t.weight.dtype() == DType::kF16, "optimizer update: weight");
    check(t.weight.numel() == count && t.weight.contiguous(), "optimizer update: weight");
    bytes += t.weight.bytes();
  }
  for (const Tensor* state : states) {
    check(state->defined() && is_flat_f32(*state), "optimizer update: state");
    bytes += 2 * state->bytes();
  }
  return {0, bytes};
}

}  // namespace

void sgd_update(Stream& stream, const UpdateTensors& t, const Tensor& velocity, const SgdUpdate& u) {
  check(velocity.defined() == (u.momentum != 0.0), "sgd_update: velocity goes with momentum");
  check(!u.nesterov || (u.momentum != 0.0 && u.dampening == 0.0), "sgd_update: nesterov without momentum");
  const OpCost cost = velocity.defined() ? check_and_cost(t, {&velocity}) : check_and_cost(t, {});
  run(stream, cost, [&] { cpu::sgd_update(stream, t, velocity, u); });
}

void adagrad_update(Stream& stream, const UpdateTensors& t, const Tensor& sum, const AdagradUpdate& u) {
  check(u.step >= 1, "adagrad_update: step");
  run(stream, check_and_cost(t, {&sum}), [&] { cpu::adagrad_update(stream, t, sum, u); });
}

void rmsprop_update(Stream& stream, const UpdateTensors& t, const Tensor& square_average,
                    const Tensor& velocity, const RmsPropUpdate& u) {
  check(velocity.defined() == (u.momentum != 0.0), "rmsprop_update: velocity goes with momentum");
  const OpCost cost = velocity.defined() ? check_and_cost(t, {&square_average, &velocity})
                                         : check_and_cost(t, {&square_average});
  run(stream, cost, [&] { cpu::rmsprop_update(stream, t, square_average, velocity, u); });
}

void adam_update(Stream& stream, const UpdateTensors& t, const Tensor& m, const Tensor& v,
                 const AdamUpdate& u) {
  check(u.step >= 1, "adam_update: step");
  run(stream, check_and_cost(t, {&m, &v}), [&] { cpu::adam_update(stream, t, m, v, u); });
}

}  // namespace meshtrain::ops
