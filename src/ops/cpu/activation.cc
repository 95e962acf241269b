#include "ops/activation.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/activation.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

constexpr float kGeluScale = 1.5957691216F;  // 2 sqrt(2/pi)
constexpr float kGeluCubic = 0.044715F;

// With u = sqrt(2/pi) (x + 0.044715 x^3): 0.5 (1 + tanh u) = 1 / (1 + e^-2u), without cancellation.
HWY_INLINE Vec gelu(Vec x) {
  const Vec cube_term = hn::Mul(set(kGeluCubic), hn::Mul(x, x));
  const Vec twice_u = hn::Mul(hn::Mul(set(kGeluScale), x), hn::Add(set(1.0F), cube_term));
  return hn::Div(x, hn::Add(set(1.0F), exp(hn::Neg(twice_u))));
}

// d/dx = s + x s (1 - s) 2u' with s = 1 / (1 + e^-2u). Beyond |x| = 10 it is 0 or 1 to fp32 precision,
// and holding x there keeps e^-2u finite.
HWY_INLINE Vec gelu_slope(Vec x) {
  const Vec held = hn::IfThenElse(hn::IsNaN(x), x, hn::Min(set(10.0F), hn::Max(set(-10.0F), x)));
  const Vec square_term = hn::Mul(set(kGeluCubic), hn::Mul(held, held));
  const Vec twice_u = hn::Mul(hn::Mul(set(kGeluScale), held), hn::Add(set(1.0F), square_term));
  const Vec twice_u_slope = hn::Mul(set(kGeluScale), hn::MulAdd(set(3.0F), square_term, set(1.0F)));
  const Vec e = exp(hn::Neg(twice_u));
  const Vec s = hn::Div(set(1.0F), hn::Add(set(1.0F), e));
  const Vec one_minus_s = hn::Mul(e, s);
  return hn::MulAdd(hn::Mul(held, s), hn::Mul(one_minus_s, twice_u_slope), s);
}

// silu(gate) = gate / (1 + e^-gate).
HWY_INLINE Vec silu(Vec gate) {
  return hn::Div(gate, hn::Add(set(1.0F), exp(hn::Neg(gate))));
}

struct SwigluGradient {
  Vec gate;
  Vec up;
};

// Below gate = -87 both are 0 to fp32 precision, and holding the gate there keeps e^-gate finite.
HWY_INLINE SwigluGradient swiglu_gradient(Vec gate, Vec up, Vec dy) {
  const Vec held = hn::IfThenElse(hn::IsNaN(gate), gate, hn::Max(set(-87.0F), gate));
  const Vec e = exp(hn::Neg(held));
  const Vec s = hn::Div(set(1.0F), hn::Add(set(1.0F), e));
  const Vec slope = hn::Mul(s, hn::MulAdd(held, hn::Mul(e, s), set(1.0F)));
  return {hn::Mul(hn::Mul(dy, up), slope), hn::Mul(dy, hn::Mul(held, s))};
}

template <class T>
void gelu_forward_row(const T* x, T* y, std::int64_t width) {
  for_each_vector(width,
                  [&](std::int64_t i, auto part) HWY_ATTR { store(gelu(load(x + i, part)), y + i, part); });
}

template <class T>
void gelu_backward_row(const T* x, const T* dy, T* dx, std::int64_t width) {
  for_each_vector(width, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Mul(load(dy + i, part), gelu_slope(load(x + i, part))), dx + i, part);
  });
}

template <class T>
void swiglu_forward_row(const T* gate, const T* up, T* y, std::int64_t width) {
  for_each_vector(width, [&](std::int64_t i, auto part) HWY_ATTR {
    store(hn::Mul(silu(load(gate + i, part)), load(up + i, part)), y + i, part);
  });
}

template <class T>
void swiglu_backward_row(const T* gate, const T* up, const T* dy, T* dgate, T* dup, std::int64_t width) {
  for_each_vector(width, [&](std::int64_t i, auto part) HWY_ATTR {
    const auto gradient = swiglu_gradient(load(gate + i, part), load(up + i, part), load(dy + i, part));
    store(gradient.gate, dgate + i, part);
    store(gradient.up, dup + i, part);
  });
}

}  // namespace

void GeluForward(DType dtype, const Rows& x, const Rows& y, std::int64_t begin, std::int64_t end) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) gelu_forward_row(x.row<T>(r), y.row<T>(r), x.width());
  });
}

void GeluBackward(DType dtype, const Rows& x, const Rows& dy, const Rows& dx, std::int64_t begin,
                  std::int64_t end) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      gelu_backward_row(x.row<T>(r), dy.row<T>(r), dx.row<T>(r), x.width());
    }
  });
}

void SwigluForward(DType dtype, const Rows& gate_up, const Rows& y, std::int64_t begin, std::int64_t end) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* gate = gate_up.row<T>(r);
      swiglu_forward_row(gate, gate + y.width(), y.row<T>(r), y.width());
    }
  });
}

void SwigluBackward(DType dtype, const Rows& gate_up, const Rows& dy, const Rows& dgate_up, std::int64_t begin,
                    std::int64_t end) {
  with_float_type(dtype, [&]<class T>(T) HWY_ATTR {
    for (std::int64_t r = begin; r < end; ++r) {
      const T* gate = gate_up.row<T>(r);
      T* dgate = dgate_up.row<T>(r);
      swiglu_backward_row(gate, gate + dy.width(), dy.row<T>(r), dgate, dgate + dy.width(), dy.width());
    }
  });
}

}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {

HWY_EXPORT(GeluForward);
HWY_EXPORT(GeluBackward);
HWY_EXPORT(SwigluForward);
HWY_EXPORT(SwigluBackward);

void gelu_forward(Stream& stream, const Tensor& x, const Tensor& y) {
  const Rows in(x);
  const Rows out(y);
  parallel_ranges(stream, in.count(), 2 * x.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(GeluForward)(x.dtype(), in, out, begin, end);
  });
}

void gelu_backward(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& dx) {
  const Rows in(x);
  const Rows grad(dy);
  const Rows out(dx);
  parallel_ranges(stream, in.count(), 3 * x.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(GeluBackward)(x.dtype(), in, grad, out, begin, end);
  });
}

void swiglu_forward(Stream& stream, const Tensor& gate_up, const Tensor& y) {
  const Rows in(gate_up);
  const Rows out(y);
  parallel_ranges(stream, in.count(), 3 * y.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(SwigluForward)(y.dtype(), in, out, begin, end);
  });
}

void swiglu_backward(Stream& stream, const Tensor& gate_up, const Tensor& dy, const Tensor& dgate_up) {
  const Rows in(gate_up);
  const Rows grad(dy);
  const Rows out(dgate_up);
  parallel_ranges(stream, in.count(), 5 * dy.bytes(), [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(SwigluBackward)(dy.dtype(), in, grad, out, begin, end);
  });
}

}  // namespace meshtrain::ops::cpu
#endif
