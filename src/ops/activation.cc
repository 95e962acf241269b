#include "ops/activation.h"

#include "ops/checks.h"
#include "ops/cpu/kernels.h"
#include "ops/dispatch.h"

namespace meshtrain::ops {
namespace {

void check_float_rows(const Tensor& t) {
  check(t.rank() >= 1 && is_float(t.dtype()), "an activation takes rows of fp32, bf16 or fp16");
}

}  // namespace

void gelu_forward(Stream& stream, const Tensor& x, const Tensor& y) {
  check_float_rows(x);
  check_matrix(y, x.dtype(), rows_of(x), x.shape().back(), "gelu: y must be like x");
  run(stream, {.bytes = x.bytes() + y.bytes()}, [&] { cpu::gelu_forward(stream, x, y); });
}

void gelu_backward(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  check_float_rows(x);
  check_matrix(dy, x.dtype(), rows_of(x), x.shape().back(), "gelu: dy must be like x");
  check_matrix(dx, x.dtype(), rows_of(x), x.shape().back(), "gelu: dx must be like x");
  run(stream, {.bytes = x.bytes() + dy.bytes() + dx.bytes()}, [&] { cpu::gelu_backward(stream, x, dy, dx); });
}

void swiglu_forward(Stream& stream, const Tensor& gate_up, const Tensor& y) {
  check_float_rows(gate_up);
  check_float_rows(y);
  check_matrix(gate_up, y.dtype(), rows_of(y), 2 * y.shape().back(),
               "swiglu: gate_up must be twice as wide as y");
  run(stream, {.bytes = gate_up.bytes() + y.bytes()}, [&] { cpu::swiglu_forward(stream, gate_up, y); });
}

void swiglu_backward(Stream& stream, const Tensor& gate_up, const Tensor& dy, const Tensor& dgate_up) {
  check_float_rows(gate_up);
  check_float_rows(dy);
  const std::int64_t width = 2 * dy.shape().back();
  check_matrix(gate_up, dy.dtype(), rows_of(dy), width, "swiglu: gate_up must be twice as wide as dy");
  check_matrix(dgate_up, dy.dtype(), rows_of(dy), width, "swiglu: dgate_up must be like gate_up");
  run(stream, {.bytes = gate_up.bytes() + dy.bytes() + dgate_up.bytes()},
      [&] { cpu::swiglu_backward(stream, gate_up, dy, dgate_up); });
}

}  // namespace meshtrain::ops
