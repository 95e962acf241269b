// Each rule below is the sequence of tensor operations that torch.optim queues, done element by element in
// one pass: one rounding wherever PyTorch's kernel has one, a fused multiply-add wherever it has that. See
// docs/numerics.md.
#include "ops/cpu/optimizer_update.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/optimizer_update.cc"
#include <hwy/foreach_target.h>
// foreach_target.h comes first.
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "ops/cpu/parallel.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/simd-inl.h"

#ifndef MESHTRAIN_OPS_CPU_OPTIMIZER_UPDATE_ONCE_
#define MESHTRAIN_OPS_CPU_OPTIMIZER_UPDATE_ONCE_
namespace meshtrain::ops::cpu {
namespace {

// What a rule reads and writes, before the cut into ranges.
struct Operands {
  Operands(const UpdateTensors& t, const Tensor& state0, const Tensor& state1)
      : master(t.master.data<float>()),
        gradient(t.gradient.raw()),
        gradient_dtype(t.gradient.dtype()),
        state{state0.defined() ? state0.data<float>() : nullptr,
              state1.defined() ? state1.data<float>() : nullptr},
        weight(t.weight.raw()),
        weight_dtype(t.weight.defined() ? t.weight.dtype() : DType::kF32),
        gradient_scale(t.gradient_scale) {}

  float* master;
  const void* gradient;
  DType gradient_dtype;
  std::array<float*, 2> state;
  void* weight;
  DType weight_dtype;
  float gradient_scale;
};

// PyTorch keeps hyperparameters, and what it derives of them, in double and rounds each to float where it
// meets a tensor. These are the values so rounded.
struct SgdConstants {
  float minus_lr, momentum, one_minus_dampening, weight_decay;
  bool nesterov, first_step;
};
struct AdagradConstants {
  float minus_lr, epsilon, weight_decay;
};
struct RmsPropConstants {
  float minus_lr, alpha, one_minus_alpha, epsilon, weight_decay, momentum;
};
struct AdamConstants {
  float minus_step_size, one_minus_beta1, beta2, one_minus_beta2, root_of_correction2, epsilon;
  float weight_decay;  // L2, into the gradient
  float keep;          // decoupled, of the master
};

}  // namespace
}  // namespace meshtrain::ops::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace meshtrain::ops::cpu::HWY_NAMESPACE {
namespace {

// a * b + c, rounded once, on every instruction set.
HWY_INLINE Vec fused_multiply_add(Vec a, Vec b, Vec c) {
#if HWY_NATIVE_FMA
  return hn::MulAdd(a, b, c);
#else
  std::array<std::array<float, static_cast<std::size_t>(kLanes)>, 3> lanes;
  hn::StoreU(a, F32(), lanes[0].data());
  hn::StoreU(b, F32(), lanes[1].data());
  hn::StoreU(c, F32(), lanes[2].data());
  for (std::size_t i = 0; i < lanes[0].size(); ++i) {
    lanes[0][i] = std::fma(lanes[0][i], lanes[1][i], lanes[2][i]);
  }
  return hn::LoadU(F32(), lanes[0].data());
#endif
}

// The kernels of PyTorch that torch.optim is made of, under their names there.
HWY_INLINE Vec add(Vec self, Vec other, float alpha) {
  return fused_multiply_add(other, set(alpha), self);
}
HWY_INLINE Vec addcmul(Vec self, Vec a, Vec b, float value) {
  return fused_multiply_add(hn::Mul(set(value), a), b, self);
}
HWY_INLINE Vec addcdiv(Vec self, Vec a, Vec b, float value) {
  return hn::Add(self, hn::Div(hn::Mul(set(value), a), b));
}
HWY_INLINE Vec lerp(Vec self, Vec end, float weight) {
  const Vec difference = hn::Sub(end, self);
  if (std::abs(weight) < 0.5F) return fused_multiply_add(set(weight), difference, self);
  return fused_multiply_add(set(weight - 1.0F), difference, end);
}

HWY_INLINE Vec decayed(Vec gradient, Vec master, float weight_decay) {
  return weight_decay == 0.0F ? gradient : add(gradient, master, weight_decay);
}

struct SgdRule : SgdConstants {
  static constexpr int kStates = 0;
  HWY_INLINE Vec operator()(Vec master, Vec gradient, std::array<Vec, 0>& /*state*/) const {
    return add(master, decayed(gradient, master, weight_decay), minus_lr);
  }
};

struct MomentumRule : SgdConstants {
  static constexpr int kStates = 1;
  HWY_INLINE Vec operator()(Vec master, Vec gradient, std::array<Vec, 1>& state) const {
    gradient = decayed(gradient, master, weight_decay);
    Vec& velocity = state[0];
    velocity = first_step ? gradient : add(hn::Mul(velocity, set(momentum)), gradient, one_minus_dampening);
    return add(master, nesterov ? add(gradient, velocity, momentum) : velocity, minus_lr);
  }
};

struct AdagradRule : AdagradConstants {
  static constexpr int kStates = 1;
  HWY_INLINE Vec operator()(Vec master, Vec gradient, std::array<Vec, 1>& state) const {
    gradient = decayed(gradient, master, weight_decay);
    state[0] = addcmul(state[0], gradient, gradient, 1.0F);
    const Vec deviation = hn::Add(hn::Sqrt(state[0]), set(epsilon));
    return addcdiv(master, gradient, deviation, minus_lr);
  }
};

template <int kStatesOfRule>
struct RmsPropRule : RmsPropConstants {
  static constexpr int kStates = kStatesOfRule;
  HWY_INLINE Vec operator()(Vec master, Vec gradient, std::array<Vec, kStates>& state) const {
    gradient = decayed(gradient, master, weight_decay);
    state[0] = addcmul(hn::Mul(state[0], set(alpha)), gradient, gradient, one_minus_alpha);
    const Vec deviation = hn::Add(hn::Sqrt(state[0]), set(epsilon));
    if constexpr (kStates == 1) {
      return addcdiv(master, gradient, deviation, minus_lr);
    } else {
      state[1] = addcdiv(hn::Mul(state[1], set(momentum)), gradient, deviation, 1.0F);
      return add(master, state[1], minus_lr);
    }
  }
};

struct AdamRule : AdamConstants {
  static constexpr int kStates = 2;
  HWY_INLINE Vec operator()(Vec master, Vec gradient, std::array<Vec, 2>& state) const {
    gradient = decayed(gradient, master, weight_decay);
    master = hn::Mul(master, set(keep));
    state[0] = lerp(state[0], gradient, one_minus_beta1);
    state[1] = addcmul(hn::Mul(state[1], set(beta2)), gradient, gradient, one_minus_beta2);
    const Vec root = hn::Div(hn::Sqrt(state[1]), set(root_of_correction2));
    return addcdiv(master, state[0], hn::Add(root, set(epsilon)), minus_step_size);
  }
};

// G: of the gradient; W: of the 16-bit copy, or float for none.
template <class G, class W, class Rule>
HWY_INLINE void apply_range(const Rule& rule, const Operands& x, std::int64_t begin, std::int64_t end) {
  const G* gradients = static_cast<const G*>(x.gradient);
  W* weight = static_cast<W*>(x.weight);
  for_each_vector(end - begin, [&](std::int64_t offset, auto part) HWY_ATTR {
    const std::int64_t i = begin + offset;
    std::array<Vec, Rule::kStates> state;
    for (int k = 0; k < Rule::kStates; ++k) state[k] = load(x.state[k] + i, part);
    Vec gradient = load(gradients + i, part);
    if (x.gradient_scale != 1.0F) gradient = hn::Mul(gradient, set(x.gradient_scale));
    const Vec master = rule(load(x.master + i, part), gradient, state);
    store(master, x.master + i, part);
    for (int k = 0; k < Rule::kStates; ++k) store(state[k], x.state[k] + i, part);
    if constexpr (sizeof(W) == 2) store(master, weight + i, part);
  });
}

template <class Rule>
void apply(const Rule& rule, const Operands& x, std::int64_t begin, std::int64_t end) {
  with_float_type(x.gradient_dtype, [&]<class G>(G) HWY_ATTR {
    with_float_type(x.weight_dtype, [&]<class W>(W) HWY_ATTR { apply_range<G, W>(rule, x, begin, end); });
  });
}

void SgdRange(const SgdConstants& c, const Operands& x, std::int64_t begin, std::int64_t end) {
  x.state[0] == nullptr ? apply(SgdRule{c}, x, begin, end) : apply(MomentumRule{c}, x, begin, end);
}

void AdagradRange(const AdagradConstants& c, const Operands& x, std::int64_t begin, std::int64_t end) {
  apply(AdagradRule{c}, x, begin, end);
}

void RmsPropRange(const RmsPropConstants& c, const Operands& x, std::int64_t begin, std::int64_t end) {
  x.state[1] == nullptr ? apply(RmsPropRule<1>{c}, x, begin, end) : apply(RmsPropRule<2>{c}, x, begin, end);
}

void AdamRange(const AdamConstants& c, const Operands& x, std::int64_t begin, std::int64_t end) {
  apply(AdamRule{c}, x, begin, end);
}

}  // namespace
}  // namespace meshtrain::ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace meshtrain::ops::cpu {
namespace {

HWY_EXPORT(SgdRange);
HWY_EXPORT(AdagradRange);
HWY_EXPORT(RmsPropRange);
HWY_EXPORT(AdamRange);

// Ranges start on whole cache lines of every operand. The cuts change no bit: all is element by element.
template <class Range>
void over_ranges(const Stream& stream, const UpdateTensors& t, const Range& range) {
  constexpr std::int64_t kBlock = Device::kAlignment;
  const std::int64_t count = t.master.numel();
  parallel_ranges(
      stream, (count + kBlock - 1) / kBlock, 4 * t.master.bytes(),
      [&](std::int64_t begin, std::int64_t end) { range(begin * kBlock, std::min(end * kBlock, count)); });
}

float rounded(double value) {
  return static_cast<float>(value);
}

}  // namespace

void sgd_update(Stream& stream, const UpdateTensors& t, const Tensor& velocity, const SgdUpdate& u) {
  const SgdConstants c{.minus_lr = rounded(-u.lr),
                       .momentum = rounded(u.momentum),
                       .one_minus_dampening = rounded(1.0 - u.dampening),
                       .weight_decay = rounded(u.weight_decay),
                       .nesterov = u.nesterov,
                       .first_step = u.first_step};
  const Operands x(t, velocity, {});
  over_ranges(stream, t, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(SgdRange)(c, x, begin, end);
  });
}

void adagrad_update(Stream& stream, const UpdateTensors& t, const Tensor& sum, const AdagradUpdate& u) {
  const double lr = u.lr / (1.0 + static_cast<double>(u.step - 1) * u.lr_decay);
  const AdagradConstants c{
      .minus_lr = rounded(-lr), .epsilon = rounded(u.epsilon), .weight_decay = rounded(u.weight_decay)};
  const Operands x(t, sum, {});
  over_ranges(stream, t, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(AdagradRange)(c, x, begin, end);
  });
}

void rmsprop_update(Stream& stream, const UpdateTensors& t, const Tensor& square_average,
                    const Tensor& velocity, const RmsPropUpdate& u) {
  const RmsPropConstants c{.minus_lr = rounded(-u.lr),
                           .alpha = rounded(u.alpha),
                           .one_minus_alpha = rounded(1.0 - u.alpha),
                           .epsilon = rounded(u.epsilon),
                           .weight_decay = rounded(u.weight_decay),
                           .momentum = rounded(u.momentum)};
  const Operands x(t, square_average, velocity);
  over_ranges(stream, t, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(RmsPropRange)(c, x, begin, end);
  });
}

void adam_update(Stream& stream, const UpdateTensors& t, const Tensor& m, const Tensor& v,
                 const AdamUpdate& u) {
  const auto step = static_cast<double>(u.step);
  const double correction1 = 1.0 - std::pow(u.beta1, step);
  const double correction2 = 1.0 - std::pow(u.beta2, step);
  const AdamConstants c{.minus_step_size = rounded(-(u.lr / correction1)),
                        .one_minus_beta1 = rounded(1.0 - u.beta1),
                        .beta2 = rounded(u.beta2),
                        .one_minus_beta2 = rounded(1.0 - u.beta2),
                        .root_of_correction2 = rounded(std::pow(correction2, 0.5)),
                        .epsilon = rounded(u.epsilon),
                        .weight_decay = u.decoupled ? 0.0F : rounded(u.weight_decay),
                        .keep = u.decoupled ? rounded(1.0 - u.lr * u.weight_decay) : 1.0F};
  const Operands x(t, m, v);
  over_ranges(stream, t, [&](std::int64_t begin, std::int64_t end) {
    HWY_DYNAMIC_DISPATCH(AdamRange)(c, x, begin, end);
  });
}

}  // namespace meshtrain::ops::cpu
#endif
