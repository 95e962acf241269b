#include "ops/attention.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "ops/reference_attention.h"
#include "ops/testing.h"

namespace meshtrain::ops {
namespace {

using reference::AttentionGradients;
using reference::AttentionInputs;
using reference::AttentionResult;
using reference::AttentionShape;
using testing::expect_close;
using testing::expect_same_on_any_threads;
using testing::HostTensor;
using testing::kFloatTypes;
using testing::on_each_target;
using testing::unit_roundoff;

constexpr double kFp32 = 0x1p-24;

std::int64_t to_signed(std::size_t n) {
  return static_cast<std::int64_t>(n);
}

// The tensors of one call. q, k, v and their gradients are slices of fused projections; the outputs start
// as noise, which the operation must overwrite.
struct Problem {
  AttentionShape shape;
  DType dtype;
  HostTensor q_fused, kv_fused, o, lse, d_o, dq_fused, dkv_fused;

  Problem(const AttentionShape& s, DType t, double deviation = 1.0)
      : shape(s),
        dtype(t),
        q_fused(HostTensor::random(t, {b(), tq(), width(s.heads) + 3}, "q", deviation)),
        kv_fused(HostTensor::random(t, {b(), tk(), 2 * width(s.kv_heads) + 1}, "kv", deviation)),
        o(HostTensor::random(t, q_shape(), "o")),
        lse(HostTensor::random(DType::kF32, {b(), to_signed(s.heads), tq()}, "lse")),
        d_o(HostTensor::random(t, q_shape(), "d_o")),
        dq_fused(HostTensor::random(t, {b(), tq(), width(s.heads) + 3}, "dq")),
        dkv_fused(HostTensor::random(t, {b(), tk(), 2 * width(s.kv_heads) + 1}, "dkv")) {}

  std::int64_t b() const { return to_signed(shape.batch); }
  std::int64_t tq() const { return to_signed(shape.queries); }
  std::int64_t tk() const { return to_signed(shape.keys); }
  std::int64_t width(std::size_t heads) const { return to_signed(heads * shape.size); }
  Shape q_shape() const { return {b(), tq(), to_signed(shape.heads), to_signed(shape.size)}; }

  Tensor part(const HostTensor& fused, std::int64_t begin, std::size_t heads) const {
    return fused.tensor().slice(2, begin, width(heads)).split(2, to_signed(heads), to_signed(shape.size));
  }
  Tensor q() const { return part(q_fused, 2, shape.heads); }
  Tensor k() const { return part(kv_fused, 0, shape.kv_heads); }
  Tensor v() const { return part(kv_fused, width(shape.kv_heads), shape.kv_heads); }
  Tensor dq() const { return part(dq_fused, 2, shape.heads); }
  Tensor dk() const { return part(dkv_fused, 0, shape.kv_heads); }
  Tensor dv() const { return part(dkv_fused, width(shape.kv_heads), shape.kv_heads); }

  AttentionInputs inputs() const {
    return {testing::values_of(q()), testing::values_of(k()), testing::values_of(v())};
  }
  void forward(Stream& stream) const {
    attention_forward(stream, {q(), k(), v(), o, lse, static_cast<float>(shape.scale)});
  }
  void backward(Stream& stream) const {
    attention_backward(stream, {q(), k(), v(), o, lse, d_o, dq(), dk(), dv(), static_cast<float>(shape.scale)});
  }
};

void expect_within(const Tensor& actual, const std::vector<double>& expected,
                   const std::vector<double>& bounds) {
  const auto values = testing::values_of(actual);
  ASSERT_EQ(values.size(), expected.size());
  const double rounding = actual.dtype() == DType::kF32 ? kFp32 : unit_roundoff(actual.dtype());
  const double subnormal = actual.dtype() == DType::kF16 ? 0x1p-24 : 0.0;
  int shown = 0;
  for (std::size_t i = 0; i < values.size() && shown < 5; ++i) {
    const double bound = bounds[i] + rounding * (std::abs(expected[i]) + bounds[i]) + subnormal;
    if (!(std::abs(values[i] - expected[i]) <= bound)) {
      ADD_FAILURE() << "element " << i << " is " << values[i] << ", expected " << expected[i] << " within "
                    << bound;
      ++shown;
    }
  }
}

// How far results may lie from exact ones, from first-order bounds on rounding (Higham 2002, sections 3.1
// and 4.2). Weights and the scores' gradients are rounded to bf16 before their products when the inputs
// are bf16; all else is fp32.
class Bounds {
 public:
  Bounds(const AttentionShape& s, DType dtype, const AttentionInputs& in) : s_(s), in_(in) {
    product_ = dtype == DType::kBF16 ? unit_roundoff(dtype) : 0.0;
    stored_ = dtype == DType::kF32 ? kFp32 : unit_roundoff(dtype);
    dot_ = static_cast<double>(s.size + 4) * kFp32;
    double largest = 1.0;
    s.for_each_score([&](auto b, auto h, auto i, auto j) {
      largest = std::max(largest, std::abs(s.scale) * dot(in.q, s.q_at(b, i, h), in.k, s.k_at(b, j, h)));
    });
    // A score's error and that of the row's largest, the exponential's, and the sum's.
    score_ = 3.0 * dot_ * largest;
    weight_ = 2.0 * score_ + static_cast<double>(s.keys + 16) * kFp32;
  }

  double lse() const { return weight_; }

  std::vector<double> o(const AttentionResult& r) const {
    std::vector<double> bound(r.o.size());
    s_.for_each_score([&](auto b, auto h, auto i, auto j) {
      const double error = (product_ + weight_) * r.weights[s_.score_at(b, h, i, j)];
      for (std::size_t d = 0; d < s_.size; ++d)
        bound[s_.q_at(b, i, h) + d] += error * std::abs(in_.v[s_.k_at(b, j, h) + d]);
    });
    return bound;
  }

  AttentionGradients gradients(const AttentionResult& r, const AttentionGradients& g,
                               const std::vector<double>& d_o) const {
    AttentionGradients bound{std::vector<double>(g.dq.size()),
                             std::vector<double>(g.dk.size()),
                             std::vector<double>(g.dv.size()),
                             {}};
    // Of the sums over keys, or over the queries of all heads of a group.
    const double sum = static_cast<double>(s_.keys * s_.heads) / static_cast<double>(s_.kv_heads) * kFp32;
    s_.for_each_score([&](auto b, auto h, auto i, auto j) {
      const std::size_t q = s_.q_at(b, i, h);
      const std::size_t k = s_.k_at(b, j, h);
      const double weight = r.weights[s_.score_at(b, h, i, j)];
      // do · o, with o as it was stored, and do · v.
      const double delta = (stored_ + dot_) * dot(d_o, q, r.o, q);
      const double d_weight = dot_ * dot(d_o, q, in_.v, k);
      const double d_score = std::abs(g.d_scores[s_.score_at(b, h, i, j)]);
      const double error = (product_ + weight_ + sum) * d_score + weight * (delta + d_weight);
      for (std::size_t d = 0; d < s_.size; ++d) {
        bound.dv[k + d] += (product_ + weight_ + sum) * weight * std::abs(d_o[q + d]);
        bound.dq[q + d] += error * std::abs(s_.scale * in_.k[k + d]);
        bound.dk[k + d] += error * std::abs(s_.scale * in_.q[q + d]);
      }
    });
    return bound;
  }

 private:
  double dot(const std::vector<double>& a, std::size_t a_at, const std::vector<double>& b,
             std::size_t b_at) const {
    double sum = 0.0;
    for (std::size_t d = 0; d < s_.size; ++d) sum += std::abs(a[a_at + d] * b[b_at + d]);
    return sum;
  }

  const AttentionShape& s_;
  const AttentionInputs& in_;
  double product_, stored_, dot_, score_, weight_;
};

std::vector<AttentionShape> square_shapes() {
  std::vector<AttentionShape> all;
  for (const std::size_t length : {1, 7, 129, 300}) {
    for (const std::size_t size : {32, 64, 80, 128}) all.push_back({1, length, length, 2, 2, size, 0.125});
  }
  for (const std::size_t kv_heads : {8, 4, 2, 1}) all.push_back({2, 70, 70, 8, kv_heads, 16, 0.25});
  all.push_back({1, 1024, 1024, 1, 1, 32, 0.2});
  all.push_back({2, 150, 150, 4, 2, 64, 0.125});  // heads enough for one task each
  all.push_back({1, 650, 650, 3, 1, 24, 0.25});   // few heads: tasks of parts
  all.push_back({3, 33, 33, 3, 3, 1, 1.0});
  all.push_back({1, 65, 65, 2, 1, 256, 0.0625});
  all.push_back({1, 90, 90, 1, 1, 33, -0.2});
  return all;
}

std::vector<AttentionShape> cached_shapes() {
  return {{1, 1, 300, 4, 2, 64, 0.125},  {2, 5, 140, 6, 3, 32, 0.2},  {1, 1, 1, 2, 1, 8, 1.0},
          {1, 130, 700, 2, 1, 16, 0.25}, {1, 1, 513, 8, 1, 128, 0.1}, {1, 1, 1100, 300, 1, 8, 0.3}};
}

class AttentionTest : public ::testing::TestWithParam<std::tuple<DType, AttentionShape>> {};

TEST_P(AttentionTest, ForwardEqualsReference) {
  const auto& [dtype, shape] = GetParam();
  const Problem p(shape, dtype);
  const AttentionInputs in = p.inputs();
  const AttentionResult expected = reference::attention(shape, in);
  const Bounds bounds(shape, dtype, in);
  const auto o_bounds = bounds.o(expected);
  on_each_target([&](Stream& stream) {
    const Problem fresh(p.shape, p.dtype);
    fresh.forward(stream);
    expect_within(fresh.o, expected.o, o_bounds);
    expect_close(fresh.lse.values(), expected.lse, kFp32, bounds.lse());
  });
}

TEST_P(AttentionTest, BackwardEqualsReference) {
  const auto& [dtype, shape] = GetParam();
  if (shape.queries != shape.keys) return;
  const Problem p(shape, dtype);
  const AttentionInputs in = p.inputs();
  const AttentionResult forward = reference::attention(shape, in);
  testing::set_values(p.o, forward.o);
  testing::set_values(p.lse, forward.lse);
  const auto d_o = p.d_o.values();
  const AttentionGradients expected = reference::attention_backward(shape, in, forward, d_o);
  const AttentionGradients bounds = Bounds(shape, dtype, in).gradients(forward, expected, d_o);
  on_each_target([&](Stream& stream) {
    testing::fill_random(p.dq_fused, "noise");
    testing::fill_random(p.dkv_fused, "noise");
    p.backward(stream);
    expect_within(p.dq(), expected.dq, bounds.dq);
    expect_within(p.dk(), expected.dk, bounds.dk);
    expect_within(p.dv(), expected.dv, bounds.dv);
  });
}

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<DType, AttentionShape>>& info) {
  const auto& [dtype, s] = info.param;
  return fmt::format("{}_B{}_T{}_of_{}_H{}_KV{}_D{}", name_of(dtype), s.batch, s.queries, s.keys, s.heads,
                     s.kv_heads, s.size);
}

INSTANTIATE_TEST_SUITE_P(Square, AttentionTest,
                         ::testing::Combine(::testing::ValuesIn(kFloatTypes),
                                            ::testing::ValuesIn(square_shapes())),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Cached, AttentionTest,
                         ::testing::Combine(::testing::ValuesIn(kFloatTypes),
                                            ::testing::ValuesIn(cached_shapes())),
                         name_of_case);

// The same tests where oneDNN may use no more than an older processor's instructions.
class AttentionOnOlderProcessor : public ::testing::TestWithParam<const char*> {};

TEST_P(AttentionOnOlderProcessor, PassesTheseTests) {
  const std::string command =
      fmt::format("ONEDNN_MAX_CPU_ISA={} '{}' --gtest_brief=1 --gtest_filter='*/AttentionTest.*' >&2",
                  GetParam(), std::filesystem::read_symlink("/proc/self/exe").string());
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

INSTANTIATE_TEST_SUITE_P(Isa, AttentionOnOlderProcessor, ::testing::Values("AVX2", "AVX512_CORE"));

// The reference itself, against PyTorch (tests/reference/ops_attention.py).
TEST(Attention, ReferenceEqualsPyTorch) {
  std::ifstream file(MESHTRAIN_TEST_DATA "/ops_attention.json");
  for (const auto& c : nlohmann::json::parse(file)) {
    const AttentionShape s{c["batch"],    c["queries"], c["keys"], c["heads"],
                           c["kv_heads"], c["size"],    c["scale"]};
    const AttentionInputs in{c["q"], c["k"], c["v"]};
    const auto forward = reference::attention(s, in);
    expect_close(forward.o, c["o"], 1e-12, 1e-12);
    expect_close(forward.lse, c["lse"], 1e-12, 1e-12);
    const auto backward = reference::attention_backward(s, in, forward, c["d_o"]);
    expect_close(backward.dq, c["dq"], 1e-12, 1e-12);
    expect_close(backward.dk, c["dk"], 1e-12, 1e-12);
    expect_close(backward.dv, c["dv"], 1e-12, 1e-12);
  }
}

TEST(Attention, SameBitsOnAnyThreads) {
  const std::vector<AttentionShape> shapes = {{2, 300, 300, 4, 2, 64, 0.125}, {1, 700, 700, 3, 1, 32, 0.2}};
  for (const DType dtype : kFloatTypes) {
    for (const AttentionShape& shape : shapes) {
      for (int output = 0; output < 4; ++output) {
        expect_same_on_any_threads([&](Stream& stream) {
          const Problem p(shape, dtype);
          p.forward(stream);
          p.backward(stream);
          return output == 0 ? p.o : output == 1 ? p.lse : output == 2 ? p.dq_fused : p.dkv_fused;
        });
      }
    }
  }
}

// What lies between the slices of a fused projection belongs to others.
TEST(Attention, WritesNothingBesideItsOutputs) {
  const Problem p({1, 70, 70, 2, 1, 20, 0.2}, DType::kBF16);
  const auto before = [](const Tensor& t) { return testing::values_of(t); };
  const Tensor dq = p.dq_fused;
  const Tensor dkv = p.dkv_fused;
  const auto first = before(dq.slice(2, 0, 2));
  const auto last = before(dq.slice(2, 2 + p.width(2), 1));
  const auto kv_last = before(dkv.slice(2, 2 * p.width(1), 1));
  on_each_target([&](Stream& stream) {
    p.forward(stream);
    p.backward(stream);
    EXPECT_EQ(testing::values_of(dq.slice(2, 0, 2)), first);
    EXPECT_EQ(testing::values_of(dq.slice(2, 2 + p.width(2), 1)), last);
    EXPECT_EQ(testing::values_of(dkv.slice(2, 2 * p.width(1), 1)), kv_last);
  });
}

TEST(Attention, HugeScoresPickOneKey) {
  for (const DType dtype : kFloatTypes) {
    const Problem p({1, 40, 40, 1, 1, 64, 1.0}, dtype, 60.0);
    const auto expected = reference::attention(p.shape, p.inputs());
    on_each_target([&](Stream& stream) {
      p.forward(stream);
      // Scores are of the order of 3e4: their fp32 error of 1e-2 leaves the choice as it is.
      expect_close(p.o.values(), expected.o, 2 * unit_roundoff(dtype), 1.0);
      for (const double v : p.lse.values()) EXPECT_TRUE(std::isfinite(v));
    });
  }
}

TEST(Attention, NanReachesOnlyTheQueriesThatSeeIt) {
  const Problem p({1, 150, 150, 1, 1, 32, 0.2}, DType::kF32);
  p.k().slice(1, 140, 1).data<float>()[5] = NAN;
  on_each_target([&](Stream& stream) {
    p.forward(stream);
    const auto o = p.o.values();
    for (std::size_t i = 0; i < o.size(); ++i) EXPECT_EQ(std::isnan(o[i]), i / 32 >= 140) << i;
  });
}

TEST(Attention, LseMayBeLeftOut) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  const Problem p({1, 9, 9, 2, 1, 16, 0.25}, DType::kF32);
  p.forward(stream);
  const auto o = p.o.values();
  testing::fill_random(p.o, "again");
  attention_forward(stream, {p.q(), p.k(), p.v(), p.o, {}, 0.25F});
  EXPECT_EQ(p.o.values(), o);
}

TEST(Attention, EmptyBatchIsNothing) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  const Problem p({0, 9, 9, 2, 1, 16, 0.25}, DType::kF32);
  p.forward(stream);
  p.backward(stream);
  EXPECT_EQ(stream.total(), OpCost{});
}

// Products of queries by keys: 4 of T * T / 2 * D forward and backward twice as many (2 a multiply-add);
// with a cache, of the keys that are seen.
TEST(Attention, ChargesHalfTheSquareOnEveryDevice) {
  for (const auto& device : {make_cpu_device(), make_sim_device()}) {
    Stream stream(*device, 1);
    const Problem p({2, 8, 8, 4, 2, 16, 0.25}, DType::kBF16);
    p.forward(stream);
    EXPECT_EQ(stream.total().flops, 2 * 4 * 16 * 4 * (8 * 8 / 2));
    EXPECT_EQ(stream.total().bytes, 2 * (2 * 8 * 64 * 2) + 2 * (2 * 8 * 32 * 2) + 2 * 4 * 8 * 4);
    const OpCost forward = stream.total();
    p.backward(stream);
    EXPECT_EQ(stream.total().flops, 3 * forward.flops);
    Stream decode(*device, 1);
    const Problem last({1, 1, 100, 1, 1, 16, 0.25}, DType::kBF16);
    last.forward(decode);
    EXPECT_EQ(decode.total().flops, 2 * 16 * (2 * 100 - 1));
  }
}

TEST(Attention, RefusesWhatDoesNotFit) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 1);
  const Problem p({1, 8, 8, 4, 2, 16, 0.25}, DType::kF32);
  const Problem narrow({1, 8, 8, 4, 2, 8, 0.25}, DType::kF32);
  const Problem three({1, 8, 8, 3, 3, 16, 0.25}, DType::kF32);
  const Problem more({1, 9, 9, 4, 2, 16, 0.25}, DType::kF32);
  const Problem half({1, 8, 8, 4, 2, 16, 0.25}, DType::kF16);
  EXPECT_THROW(attention_forward(stream, {p.q(), narrow.k(), narrow.v(), p.o, p.lse}), std::logic_error);
  EXPECT_THROW(attention_forward(stream, {p.q(), three.k(), three.v(), p.o, p.lse}), std::logic_error);
  EXPECT_THROW(attention_forward(stream, {more.q(), p.k(), p.v(), more.o, more.lse}), std::logic_error);
  EXPECT_THROW(attention_forward(stream, {p.q(), half.k(), half.v(), p.o, p.lse}), std::logic_error);
  EXPECT_THROW(attention_forward(stream, {p.q(), p.k(), p.v(), half.o, p.lse}), std::logic_error);
  EXPECT_THROW(attention_forward(stream, {p.q(), p.k(), p.v(), p.o, more.lse}), std::logic_error);
  EXPECT_THROW(
      attention_backward(stream, {p.q(), more.k(), more.v(), p.o, p.lse, p.d_o, p.dq(), more.dk(), more.dv()}),
      std::logic_error);
}

// The results are those of the widened numbers, rounded to bf16 where they are stored.
TEST(Attention, Bf16ProductsInFp32AreThoseOfTheWidenedNumbers) {
  const auto cpu = make_cpu_device();
  Stream stream(*cpu, 2);
  stream.set_bf16_products(Bf16Products::kFp32);
  for (const std::size_t length : {5U, 130U, 700U}) {
    const AttentionShape shape = {
        .batch = 2, .queries = length, .keys = length, .heads = 4, .kv_heads = 2, .size = 24, .scale = 0.2};
    const Problem narrow(shape, DType::kBF16);
    const Problem wide(shape, DType::kF32);
    for (const auto& [from, to] :
         {std::pair{&narrow.q_fused, &wide.q_fused}, std::pair{&narrow.kv_fused, &wide.kv_fused},
          std::pair{&narrow.d_o, &wide.d_o}}) {
      testing::set_values(*to, from->values());
    }
    const auto expect_rounded = [](const Tensor& actual, const Tensor& exact) {
      std::vector<double> expected = testing::values_of(exact);
      for (double& v : expected) v = static_cast<double>(static_cast<float>(BF16(static_cast<float>(v))));
      EXPECT_EQ(testing::values_of(actual), expected);
    };
    narrow.forward(stream);
    wide.forward(stream);
    EXPECT_EQ(narrow.lse.bytes(), wide.lse.bytes());
    expect_rounded(narrow.o, wide.o);
    testing::set_values(wide.o, narrow.o.values());  // the backward pass reads it
    narrow.backward(stream);
    wide.backward(stream);
    expect_rounded(narrow.dq(), wide.dq());
    expect_rounded(narrow.dk(), wide.dk());
    expect_rounded(narrow.dv(), wide.dv());
  }
}

}  // namespace
}  // namespace meshtrain::ops
