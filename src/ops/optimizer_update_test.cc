#include "ops/optimizer_update.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "ops/testing.h"

namespace meshtrain::ops {
namespace {

using testing::HostTensor;
using testing::on_each_target;

// One element of an update, as torch.optim's sequence of kernels computes it.
struct Element {
  float master;
  float gradient;
  float state0;
  float state1;
};

float add(float self, float other, double alpha) {
  return std::fma(other, static_cast<float>(alpha), self);
}
float addcmul(float self, float a, float b, double value) {
  return std::fma(static_cast<float>(value) * a, b, self);
}
float addcdiv(float self, float a, float b, double value) {
  return self + static_cast<float>(value) * a / b;
}
float lerp(float self, float end, double weight) {
  const auto w = static_cast<float>(weight);
  return w < 0.5F ? std::fma(w, end - self, self) : std::fma(w - 1.0F, end - self, end);
}

void reference(Element& x, const SgdUpdate& u) {
  if (u.weight_decay != 0.0) x.gradient = add(x.gradient, x.master, u.weight_decay);
  if (u.momentum != 0.0) {
    x.state0 = u.first_step ? x.gradient
                            : add(x.state0 * static_cast<float>(u.momentum), x.gradient, 1.0 - u.dampening);
    x.gradient = u.nesterov ? add(x.gradient, x.state0, u.momentum) : x.state0;
  }
  x.master = add(x.master, x.gradient, -u.lr);
}

void reference(Element& x, const AdagradUpdate& u) {
  if (u.weight_decay != 0.0) x.gradient = add(x.gradient, x.master, u.weight_decay);
  x.state0 = addcmul(x.state0, x.gradient, x.gradient, 1.0);
  const float deviation = std::sqrt(x.state0) + static_cast<float>(u.epsilon);
  x.master =
      addcdiv(x.master, x.gradient, deviation, -(u.lr / (1.0 + static_cast<double>(u.step - 1) * u.lr_decay)));
}

void reference(Element& x, const RmsPropUpdate& u) {
  if (u.weight_decay != 0.0) x.gradient = add(x.gradient, x.master, u.weight_decay);
  x.state0 = addcmul(x.state0 * static_cast<float>(u.alpha), x.gradient, x.gradient, 1.0 - u.alpha);
  const float deviation = std::sqrt(x.state0) + static_cast<float>(u.epsilon);
  if (u.momentum == 0.0) {
    x.master = addcdiv(x.master, x.gradient, deviation, -u.lr);
  } else {
    x.state1 = addcdiv(x.state1 * static_cast<float>(u.momentum), x.gradient, deviation, 1.0);
    x.master = add(x.master, x.state1, -u.lr);
  }
}

void reference(Element& x, const AdamUpdate& u) {
  if (u.decoupled) {
    x.master *= static_cast<float>(1.0 - u.lr * u.weight_decay);
  } else if (u.weight_decay != 0.0) {
    x.gradient = add(x.gradient, x.master, u.weight_decay);
  }
  x.state0 = lerp(x.state0, x.gradient, 1.0 - u.beta1);
  x.state1 = addcmul(x.state1 * static_cast<float>(u.beta2), x.gradient, x.gradient, 1.0 - u.beta2);
  const double correction1 = 1.0 - std::pow(u.beta1, static_cast<double>(u.step));
  const double correction2 = 1.0 - std::pow(u.beta2, static_cast<double>(u.step));
  const float denominator =
      std::sqrt(x.state1) / static_cast<float>(std::pow(correction2, 0.5)) + static_cast<float>(u.epsilon);
  x.master = addcdiv(x.master, x.state0, denominator, -(u.lr / correction1));
}

bool uses_state0(const SgdUpdate& u) {
  return u.momentum != 0.0;
}
bool uses_state0(const auto& /*u*/) {
  return true;
}
bool uses_state1(const RmsPropUpdate& u) {
  return u.momentum != 0.0;
}
bool uses_state1(const AdamUpdate& /*u*/) {
  return true;
}
bool uses_state1(const auto& /*u*/) {
  return false;
}

void update(Stream& stream, const UpdateTensors& t, const Tensor& state0, const Tensor& /*state1*/,
            const SgdUpdate& u) {
  sgd_update(stream, t, u.momentum == 0.0 ? Tensor() : state0, u);
}
void update(Stream& stream, const UpdateTensors& t, const Tensor& state0, const Tensor& /*state1*/,
            const AdagradUpdate& u) {
  adagrad_update(stream, t, state0, u);
}
void update(Stream& stream, const UpdateTensors& t, const Tensor& state0, const Tensor& state1,
            const RmsPropUpdate& u) {
  rmsprop_update(stream, t, state0, u.momentum == 0.0 ? Tensor() : state1, u);
}
void update(Stream& stream, const UpdateTensors& t, const Tensor& state0, const Tensor& state1,
            const AdamUpdate& u) {
  adam_update(stream, t, state0, state1, u);
}

// Operands of one update, with gradients over many magnitudes.
struct Problem {
  explicit Problem(std::int64_t n, DType weight_dtype = DType::kF32, DType gradient_dtype = DType::kF32)
      : master(HostTensor::random(DType::kF32, {n}, "master")),
        gradient(HostTensor::random(DType::kF32, {n}, "gradient")),
        state0(HostTensor::random(DType::kF32, {n}, "state0", 0.3)),
        state1(HostTensor::random(DType::kF32, {n}, "state1", 0.3)),
        weight(weight_dtype, {n}),
        narrow_gradient(gradient_dtype, {n}) {
    const RandomStream exponent(7, "exponent");
    for (std::int64_t i = 0; i < n; ++i) {
      at(gradient, i) *= std::exp2(std::floor(6.0F * exponent.normal(static_cast<std::uint64_t>(i))));
      at(state1, i) = std::abs(at(state1, i));
    }
    if (gradient_dtype == DType::kF32) return;
    testing::set_values(narrow_gradient, gradient.values());
    testing::set_values(gradient, narrow_gradient.values());
  }

  static float& at(HostTensor& t, std::int64_t i) { return t.tensor().data<float>()[i]; }

  UpdateTensors tensors(float scale = 1.0F) const {
    const bool with_weight = weight.tensor().dtype() != DType::kF32;
    const bool narrow = narrow_gradient.tensor().dtype() != DType::kF32;
    return {master, narrow ? narrow_gradient : gradient, with_weight ? weight.tensor() : Tensor(), scale};
  }

  HostTensor master, gradient, state0, state1, weight;
  HostTensor narrow_gradient;  // unless fp32, what the update reads; `gradient` has its values
};

// A square is never negative; where the first state is one, it starts so.
template <class Update>
Problem problem_for(const Update& u, std::int64_t n, DType weight_dtype = DType::kF32,
                    DType gradient_dtype = DType::kF32) {
  Problem p(n, weight_dtype, gradient_dtype);
  if constexpr (std::is_same_v<Update, AdagradUpdate> || std::is_same_v<Update, RmsPropUpdate>) {
    for (std::int64_t i = 0; i < n; ++i) Problem::at(p.state0, i) = std::abs(Problem::at(p.state0, i));
  }
  static_cast<void>(u);
  return p;
}

void expect_bits(float actual, float expected, const char* what, std::int64_t i) {
  if (std::isnan(expected) && std::isnan(actual)) return;
  ASSERT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(expected))
      << what << "[" << i << "] is " << actual << ", expected " << expected;
}

template <class Update>
void expect_equals_reference(Stream& stream, const Update& u, std::int64_t n, DType weight_dtype, float scale,
                             DType gradient_dtype = DType::kF32) {
  SCOPED_TRACE(n);
  Problem before = problem_for(u, n, weight_dtype, gradient_dtype);
  Problem p = before;
  update(stream, p.tensors(scale), p.state0, p.state1, u);
  for (std::int64_t i = 0; i < n; ++i) {
    Element x{Problem::at(before.master, i), Problem::at(before.gradient, i) * scale,
              Problem::at(before.state0, i), Problem::at(before.state1, i)};
    reference(x, u);
    expect_bits(Problem::at(p.master, i), x.master, "master", i);
    if (uses_state0(u)) expect_bits(Problem::at(p.state0, i), x.state0, "state0", i);
    if (uses_state1(u)) expect_bits(Problem::at(p.state1, i), x.state1, "state1", i);
    if (weight_dtype == DType::kBF16) {
      ASSERT_EQ(p.weight.tensor().data<BF16>()[i].bits, bf16_bits(x.master)) << i;
    } else if (weight_dtype == DType::kF16) {
      ASSERT_EQ(p.weight.tensor().data<F16>()[i].bits, f16_bits(x.master)) << i;
    }
    expect_bits(Problem::at(p.gradient, i), Problem::at(before.gradient, i), "gradient", i);
  }
}

template <class Update>
void expect_equals_reference(Stream& stream, const Update& u) {
  for (const std::int64_t n : {1, 3, 4, 15, 16, 17, 63, 64, 65, 1000}) {
    expect_equals_reference(stream, u, n, DType::kF32, 1.0F);
  }
  expect_equals_reference(stream, u, 333, DType::kBF16, 0.37F);
  expect_equals_reference(stream, u, 333, DType::kF16, 0.5F);
  for (const DType gradient : testing::kHalfTypes) {
    for (const DType weight : {DType::kF32, gradient}) {
      for (const std::int64_t n : {1, 7, 333}) expect_equals_reference(stream, u, n, weight, 0.37F, gradient);
    }
    expect_equals_reference(stream, u, 50, gradient, 1.0F, gradient);
  }
}

TEST(OptimizerUpdateTest, SgdEqualsReference) {
  on_each_target([](Stream& stream) {
    for (const double decay : {0.0, 0.1}) {
      expect_equals_reference(stream, SgdUpdate{.lr = 0.05, .weight_decay = decay});
      for (const bool nesterov : {false, true}) {
        for (const bool first : {false, true}) {
          expect_equals_reference(stream, SgdUpdate{.lr = 0.05,
                                                    .momentum = 0.9,
                                                    .weight_decay = decay,
                                                    .nesterov = nesterov,
                                                    .first_step = first});
        }
      }
    }
    expect_equals_reference(stream, SgdUpdate{.lr = 0.05, .momentum = 0.8, .dampening = 0.3});
  });
}

TEST(OptimizerUpdateTest, AdagradEqualsReference) {
  on_each_target([](Stream& stream) {
    for (const double decay : {0.0, 0.1}) {
      expect_equals_reference(stream,
                              AdagradUpdate{.lr = 0.05, .lr_decay = 0.01, .weight_decay = decay, .step = 5});
    }
  });
}

TEST(OptimizerUpdateTest, RmsPropEqualsReference) {
  on_each_target([](Stream& stream) {
    for (const double decay : {0.0, 0.1}) {
      for (const double momentum : {0.0, 0.7}) {
        expect_equals_reference(
            stream, RmsPropUpdate{.lr = 0.01, .alpha = 0.95, .weight_decay = decay, .momentum = momentum});
      }
    }
  });
}

TEST(OptimizerUpdateTest, AdamEqualsReference) {
  on_each_target([](Stream& stream) {
    for (const bool decoupled : {false, true}) {
      for (const double decay : {0.0, 0.1}) {
        for (const double beta1 : {0.9, 0.5, 0.2}) {
          expect_equals_reference(stream, AdamUpdate{.lr = 0.01,
                                                     .beta1 = beta1,
                                                     .beta2 = 0.95,
                                                     .weight_decay = decay,
                                                     .decoupled = decoupled,
                                                     .step = 3});
        }
      }
    }
  });
}

// Long enough to be shared out among three threads.
TEST(OptimizerUpdateTest, ThreadsChangeNoBit) {
  constexpr std::int64_t kLength = 100003;
  on_each_target([](Stream& stream) {
    expect_equals_reference(stream, SgdUpdate{.lr = 0.1, .momentum = 0.9}, kLength, DType::kF32, 0.9F);
    expect_equals_reference(stream, AdamUpdate{.lr = 0.1, .weight_decay = 0.1}, kLength, DType::kBF16, 1.0F);
    expect_equals_reference(stream, AdamUpdate{.lr = 0.1}, kLength, DType::kBF16, 1.0F, DType::kBF16);
  });
}

// A shard may be cut anywhere, at any alignment.
TEST(OptimizerUpdateTest, CutsChangeNoBit) {
  constexpr std::int64_t kLength = 1031;
  const AdamUpdate u{.lr = 0.01, .weight_decay = 0.1, .step = 2};
  on_each_target([&](Stream& stream) {
    const Problem whole(kLength, DType::kBF16);
    const Problem parts = whole;
    adam_update(stream, whole.tensors(0.7F), whole.state0, whole.state1, u);
    std::int64_t begin = 0;
    for (const std::int64_t end : {1L, 14L, 31L, 500L, 501L, 501L, kLength}) {
      const auto part = [&](const HostTensor& t) { return t.tensor().slice(0, begin, end - begin); };
      adam_update(stream, {part(parts.master), part(parts.gradient), part(parts.weight), 0.7F},
                  part(parts.state0), part(parts.state1), u);
      begin = end;
    }
    EXPECT_EQ(parts.master.bytes(), whole.master.bytes());
    EXPECT_EQ(parts.state0.bytes(), whole.state0.bytes());
    EXPECT_EQ(parts.state1.bytes(), whole.state1.bytes());
    EXPECT_EQ(parts.weight.bytes(), whole.weight.bytes());
  });
}

TEST(OptimizerUpdateTest, FusesOnEveryInstructionSet) {
  // (1 + 2^-12)^2 - (1 + 2^-11) is 2^-24; rounding the product first would make it 0.
  const double lr = -(1.0 + 0x1p-12);
  on_each_target([&](Stream& stream) {
    const auto master = HostTensor::of(DType::kF32, {1}, {-(1.0 + 0x1p-11)});
    const auto gradient = HostTensor::of(DType::kF32, {1}, {1.0 + 0x1p-12});
    sgd_update(stream, {master, gradient, Tensor(), 1.0F}, Tensor(), {.lr = lr});
    EXPECT_EQ(master.values()[0], 0x1p-24);
  });
}

TEST(OptimizerUpdateTest, WhatIsNotFiniteSpreadsOnlyToItsElement) {
  const float infinity = std::numeric_limits<float>::infinity();
  on_each_target([&](Stream& stream) {
    Problem p(35, DType::kF16);
    Problem::at(p.gradient, 2) = infinity;
    Problem::at(p.gradient, 34) = std::numeric_limits<float>::quiet_NaN();
    adam_update(stream, p.tensors(), p.state0, p.state1, {.lr = 0.1});
    for (std::int64_t i = 0; i < 35; ++i) {
      EXPECT_EQ(std::isfinite(Problem::at(p.master, i)), i != 2 && i != 34) << i;
      const auto weight = static_cast<float>(p.weight.tensor().data<F16>()[i]);
      EXPECT_EQ(std::isfinite(weight), i != 2 && i != 34) << i;
    }
  });
}

TEST(OptimizerUpdateTest, KeepsSubnormals) {
  on_each_target([](Stream& stream) {
    const auto master = HostTensor::of(DType::kF32, {1}, {0.0});
    const auto gradient = HostTensor::of(DType::kF32, {1}, {0x1p-140});
    sgd_update(stream, {master, gradient, Tensor(), 1.0F}, Tensor(), {.lr = 0.5});
    EXPECT_EQ(master.values()[0], -0x1p-141);
  });
}

TEST(OptimizerUpdateTest, NothingToDoIsFine) {
  const auto device = make_cpu_device();
  Stream stream(*device, 2);
  float none = 0.0F;
  const Tensor empty(&none, DType::kF32, {0});
  adam_update(stream, {empty, empty, Tensor(), 1.0F}, empty, empty, {.lr = 0.1});
  EXPECT_EQ(none, 0.0F);
}

TEST(OptimizerUpdateTest, ChargesEachElementOnceOnTheSimulator) {
  const auto device = make_sim_device();
  Stream stream(*device, 1);
  const Buffer memory = device->allocate(4 * 1024, MemoryCategory::kOptimizer);
  const Tensor x(memory.data(), DType::kF32, {1000});
  const Tensor w(memory.data(), DType::kBF16, {1000});
  sgd_update(stream, {x, x, Tensor(), 1.0F}, Tensor(), {.lr = 1.0});
  EXPECT_EQ(stream.total(), (OpCost{0, 12 * 1000}));
  adam_update(stream, {x, x, w, 1.0F}, x, x, {.lr = 1.0});
  EXPECT_EQ(stream.total(), (OpCost{0, (12 + 30) * 1000}));
  adam_update(stream, {x, w, w, 1.0F}, x, x, {.lr = 1.0});
  EXPECT_EQ(stream.total(), (OpCost{0, (12 + 30 + 28) * 1000}));
}

TEST(OptimizerUpdateTest, RefusesOperandsThatDoNotFit) {
  const auto device = make_cpu_device();
  Stream stream(*device, 1);
  const HostTensor x(DType::kF32, {8});
  const HostTensor longer(DType::kF32, {9});
  const HostTensor half(DType::kBF16, {8});
  const Tensor none;
  EXPECT_THROW(sgd_update(stream, {x, longer, none, 1.0F}, none, {}), std::logic_error);
  EXPECT_THROW(sgd_update(stream, {x, HostTensor(DType::kI32, {8}), none, 1.0F}, none, {}), std::logic_error);
  EXPECT_THROW(sgd_update(stream, {half, x, none, 1.0F}, none, {}), std::logic_error);
  EXPECT_THROW(sgd_update(stream, {x, x, x, 1.0F}, none, {}), std::logic_error);
  EXPECT_THROW(sgd_update(stream, {x, x, none, 1.0F}, x, {}), std::logic_error);
  EXPECT_THROW(sgd_update(stream, {x, x, none, 1.0F}, none, {.momentum = 0.9}), std::logic_error);
  EXPECT_THROW(rmsprop_update(stream, {x, x, none, 1.0F}, x, none, {.momentum = 0.9}), std::logic_error);
  EXPECT_THROW(adam_update(stream, {x, x, none, 1.0F}, x, none, {}), std::logic_error);
  EXPECT_THROW(adam_update(stream, {x, x, half, 1.0F}, x, longer, {}), std::logic_error);
  EXPECT_THROW(adam_update(stream, {x, x, half, 1.0F}, x, x, {.step = 0}), std::logic_error);
}

}  // namespace
}  // namespace meshtrain::ops
