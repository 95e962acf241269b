// Operations at the sizes of gpt2-124m with 4 x 1024 tokens, in bf16 and fp32, on all cores.
//   cmake --preset release -DMESHTRAIN_BENCH=ON && cmake --build --preset release --target ops_bench
//   build/release/bench/ops_bench --benchmark_filter=attention
#include <benchmark/benchmark.h>

#include <cmath>
#include <memory>
#include <thread>

#include "device/arena.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/optimizer_update.h"
#include "ops/square_sum.h"

namespace meshtrain {
namespace {

constexpr std::int64_t kTokens = 4096;
constexpr std::int64_t kHidden = 768;
constexpr std::int64_t kVocab = 50257;

// Operands of one benchmark, filled with small random numbers.
class Bench {
 public:
  explicit Bench(benchmark::State& state)
      : dtype(state.range(0) == 0 ? DType::kBF16 : DType::kF32),
        device_(make_cpu_device()),
        stream(*device_, static_cast<int>(std::thread::hardware_concurrency())),
        arena_(*device_, MemoryCategory::kWorkspace, "operands", std::int64_t{3} << 30U),
        state_(state) {
    state.SetLabel(std::string(name_of(dtype)));
  }

  Tensor random(DType type, const Shape& shape) {
    const Tensor result = arena_.allocate(type, shape);
    const Shape flat = {shape.numel()};
    if (type == DType::kF32) {
      ops::fill_normal(stream, result.view(flat), RandomStream(1, "bench"), 0, 0.0F, 0.02F);
      return result;
    }
    const ArenaScope scope(arena_);
    const Tensor wide = arena_.allocate(DType::kF32, flat);
    ops::fill_normal(stream, wide, RandomStream(1, "bench"), 0, 0.0F, 0.02F);
    ops::cast(stream, wide, result.view(flat));
    return result;
  }
  Tensor random(const Shape& shape) { return random(dtype, shape); }

  // Reports the FLOPs and bytes that the operation charges as rates.
  template <class Operation>
  void run(const Operation& operation) {
    operation();
    const OpCost before = stream.total();
    for (auto _ : state_) operation();
    const OpCost spent = stream.total() - before;
    state_.counters["FLOP/s"] =
        benchmark::Counter(static_cast<double>(spent.flops), benchmark::Counter::kIsRate);
    state_.counters["bytes/s"] =
        benchmark::Counter(static_cast<double>(spent.bytes), benchmark::Counter::kIsRate);
  }

  const DType dtype;

 private:
  std::unique_ptr<Device> device_;

 public:
  Stream stream;

 private:
  Arena arena_;
  benchmark::State& state_;
};

// range(1): out features, range(2): in features; range(3): 0 forward, 1 backward input, 2 backward weight,
// 3 backward weight with the gradient in the operands' type.
void linear(benchmark::State& state) {
  Bench b(state);
  const std::int64_t out = state.range(1);
  const std::int64_t in = state.range(2);
  const Tensor x = b.random({kTokens, in});
  const Tensor w = b.random({out, in});
  const Tensor y = b.random({kTokens, out});
  const Tensor dw = b.random(state.range(3) == 3 ? b.dtype : DType::kF32, {out, in});
  switch (state.range(3)) {
    case 0:
      b.run([&] { ops::matmul(b.stream, x, w, y, {.transpose_b = true}); });
      break;
    case 1:
      b.run([&] { ops::matmul(b.stream, y, w, x, {}); });
      break;
    default:
      b.run([&] { ops::matmul(b.stream, y, x, dw, {.transpose_a = true, .accumulate = true}); });
  }
}
BENCHMARK(linear)
    ->ArgNames({"fp32", "out", "in", "pass"})
    ->ArgsProduct({{0, 1}, {2304, 768}, {768}, {0, 1, 2}})
    ->ArgsProduct({{0, 1}, {3072}, {768}, {0, 1, 2}})
    ->ArgsProduct({{0, 1}, {768}, {3072}, {0, 1, 2}})
    ->ArgsProduct({{0}, {768, 3072}, {768}, {3}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void attention(benchmark::State& state) {
  Bench b(state);
  const std::int64_t seq = state.range(1);
  const std::int64_t batch = kTokens / seq;
  const std::int64_t heads = 12;
  const Tensor qkv = b.random({kTokens, 3 * kHidden});
  const Tensor d_qkv = b.random({kTokens, 3 * kHidden});
  const Tensor o = b.random({batch, seq, heads, 64});
  const Tensor d_o = b.random({batch, seq, heads, 64});
  const Tensor lse = b.random(DType::kF32, {batch, heads, seq});
  const auto part = [&](const Tensor& t, std::int64_t i) {
    return t.slice(1, i * kHidden, kHidden).split(0, batch, seq).split(2, heads, 64);
  };
  const float scale = 0.125F;
  const auto forward = [&] {
    ops::attention_forward(
        b.stream,
        {.q = part(qkv, 0), .k = part(qkv, 1), .v = part(qkv, 2), .o = o, .lse = lse, .scale = scale});
  };
  if (state.range(2) == 0) {
    b.run(forward);
    return;
  }
  forward();
  b.run([&] {
    ops::attention_backward(b.stream, {.q = part(qkv, 0),
                                       .k = part(qkv, 1),
                                       .v = part(qkv, 2),
                                       .o = o,
                                       .lse = lse,
                                       .d_o = d_o,
                                       .dq = part(d_qkv, 0),
                                       .dk = part(d_qkv, 1),
                                       .dv = part(d_qkv, 2),
                                       .scale = scale});
  });
}
BENCHMARK(attention)
    ->ArgNames({"fp32", "seq", "backward"})
    ->ArgsProduct({{0, 1}, {64, 1024}, {0, 1}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void add_norm(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random({kTokens, kHidden});
  const Tensor delta = b.random({kTokens, kHidden});
  const Tensor y = b.random({kTokens, kHidden});
  const Tensor gamma = b.random({kHidden});
  const Tensor stats = b.random(DType::kF32, {kTokens, 1});
  b.run([&] {
    ops::norm_forward(b.stream, {.kind = ops::NormKind::kRmsNorm,
                                 .x = x,
                                 .delta = delta,
                                 .sum = x,
                                 .gamma = gamma,
                                 .y = y,
                                 .stats = stats});
  });
}
BENCHMARK(add_norm)->ArgName("fp32")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();

void gelu(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random({kTokens, 4 * kHidden});
  const Tensor y = b.random({kTokens, 4 * kHidden});
  b.run([&] { ops::gelu_forward(b.stream, x, y); });
}
BENCHMARK(gelu)->ArgName("fp32")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();

void cross_entropy(benchmark::State& state) {
  Bench b(state);
  constexpr std::int64_t kRows = 640;
  const Tensor logits = b.random(DType::kF32, {kRows, kVocab});
  const Tensor dlogits = b.random({kRows, kVocab});
  const Tensor losses = b.random(DType::kF32, {kRows});
  std::vector<std::int32_t> ids(kRows, 7);
  const Tensor targets(ids.data(), DType::kI32, {kRows});
  b.run([&] {
    ops::cross_entropy(b.stream, {.logits = logits,
                                  .targets = targets,
                                  .vocab = kVocab,
                                  .losses = losses,
                                  .dlogits = dlogits,
                                  .scale = 1.0F});
  });
}
BENCHMARK(cross_entropy)->ArgName("fp32")->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond)->UseRealTime();

// Token ids by Zipf's law, as text has them.
void embedding_backward(benchmark::State& state) {
  Bench b(state);
  const Tensor dout = b.random({kTokens, kHidden});
  const Tensor dtable = b.random(state.range(1) == 0 ? DType::kF32 : b.dtype, {kVocab, kHidden});
  const RandomStream random(1, "tokens");
  std::vector<std::int32_t> ids;
  for (std::uint64_t i = 0; i < kTokens; ++i) {
    ids.push_back(static_cast<std::int32_t>(std::pow(static_cast<double>(kVocab), random.uniform(i)) - 1.0));
  }
  const Tensor tokens(ids.data(), DType::kI32, {kTokens});
  b.run([&] { ops::embedding_backward(b.stream, tokens, dout, dtable); });
}
BENCHMARK(embedding_backward)
    ->ArgNames({"fp32", "gradient16"})
    ->Args({0, 0})
    ->Args({1, 0})
    ->Args({0, 1})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

void square_nodes(benchmark::State& state) {
  Bench b(state);
  const Tensor x = b.random({state.range(1)});
  b.run([&] { benchmark::DoNotOptimize(ops::square_nodes(b.stream, x, 0)); });
}
BENCHMARK(square_nodes)
    ->ArgNames({"fp32", "elements"})
    ->ArgsProduct({{0, 1}, {kHidden, kHidden* kHidden, kVocab* kHidden}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

void adamw(benchmark::State& state) {
  Bench b(state);
  const Shape flat = {kVocab * kHidden};
  ops::UpdateTensors tensors;
  tensors.master = b.random(DType::kF32, flat);
  tensors.gradient = b.random(state.range(1) == 0 ? DType::kF32 : b.dtype, flat);
  if (b.dtype != DType::kF32) tensors.weight = b.random(flat);
  const Tensor m = b.random(DType::kF32, flat);
  const Tensor v = b.random(DType::kF32, flat);
  ops::fill(b.stream, v, 1e-4F);
  b.run([&] { ops::adam_update(b.stream, tensors, m, v, {.lr = 1e-4, .weight_decay = 0.1, .step = 10}); });
}
BENCHMARK(adamw)
    ->ArgNames({"fp32", "gradient16"})
    ->ArgsProduct({{0}, {0, 1}})
    ->Args({1, 0})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

}  // namespace
}  // namespace meshtrain
