#include "telemetry/peak.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/median.h"
#include "base/stopwatch.h"
#include "device/arena.h"
#include "ops/elementwise.h"
#include "ops/matmul.h"

namespace meshtrain {
namespace {

double tflops(const MatmulShape& s, double seconds) {
  const double flops = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  return seconds > 0.0 ? flops / seconds / 1e12 : 0.0;
}

// Elements, fp32 before they are cast.
constexpr std::int64_t kRandomBlock = 1 << 16;

// Operands of one product, on a device of their own.
class Operands {
 public:
  Operands(const MatmulShape& s, const MatmulBenchOptions& options)
      : device_(make_cpu_device()),
        stream_(*device_, options.threads),
        arena_(*device_, MemoryCategory::kWorkspace, "operands", matmul_bytes(s, options)) {
    a_ = random_matrix(s.m, s.k, options.dtype, "bench/a");
    b_ = random_matrix(s.n, s.k, options.dtype, "bench/b");
    c_ = arena_.allocate(options.dtype, {s.m, s.n});
    if (options.flush_bytes > 0) flush_ = arena_.allocate(DType::kF32, {options.flush_bytes / 4});
  }

  void multiply() { ops::matmul(stream_, a_, b_, c_, {.transpose_b = true}); }
  void flush() {
    if (flush_.defined()) ops::scale(stream_, flush_, 0.5F);
  }

 private:
  // A block of random numbers again and again: no product takes longer for it, and drawing all of a large
  // matrix would.
  Tensor random_matrix(std::int64_t rows, std::int64_t columns, DType dtype, const char* purpose) {
    const Tensor matrix = arena_.allocate(dtype, {rows, columns});
    const Tensor flat = matrix.view({rows * columns});
    const ArenaScope scope(arena_);
    const std::int64_t block = std::min(flat.numel(), kRandomBlock);
    const Tensor wide = arena_.allocate(DType::kF32, {block});
    ops::fill_normal(stream_, wide, RandomStream(1, purpose), 0, 0.0F, 1.0F);
    for (std::int64_t begin = 0; begin < flat.numel(); begin += block) {
      const std::int64_t count = std::min(block, flat.numel() - begin);
      ops::cast(stream_, wide.slice(0, 0, count), flat.slice(0, begin, count));
    }
    return matrix;
  }

  std::unique_ptr<Device> device_;
  Stream stream_;
  Arena arena_;
  Tensor a_;
  Tensor b_;
  Tensor c_;
  Tensor flush_;
};

}  // namespace

std::int64_t matmul_bytes(const MatmulShape& s, const MatmulBenchOptions& options) {
  return (s.m * s.k + s.n * s.k + s.m * s.n) * size_of(options.dtype) + kRandomBlock * size_of(DType::kF32) +
         options.flush_bytes + 8192;
}

double MatmulTiming::mean_tflops() const {
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  return seconds.empty() ? 0.0 : tflops(shape, sum / static_cast<double>(seconds.size()));
}

double MatmulTiming::median_tflops() const {
  return seconds.empty() ? 0.0 : tflops(shape, median(seconds));
}

double MatmulTiming::best_tflops() const {
  return seconds.empty() ? 0.0 : tflops(shape, *std::min_element(seconds.begin(), seconds.end()));
}

MatmulTiming time_matmul(const MatmulShape& shape, const MatmulBenchOptions& options,
                         const std::function<bool()>& stop) {
  MatmulTiming timing{.shape = shape, .seconds = {}};
  if (stop()) return timing;
  Operands operands(shape, options);
  const Stopwatch whole;
  const auto late = [&] { return options.seconds_limit > 0.0 && whole.seconds() >= options.seconds_limit; };
  for (int i = 0; i < options.warmup && !stop(); ++i) operands.multiply();
  for (int i = 0; i < options.repeats && !stop(); ++i) {
    operands.flush();
    const Stopwatch one;
    operands.multiply();
    timing.seconds.push_back(one.seconds());
    if (late()) break;
  }
  return timing;
}

double quick_peak_tflops(DType dtype, int threads) {
  // Shapes of a training step's products, large enough for every blocking.
  constexpr MatmulShape kShapes[] = {{2048, 2048, 2048}, {4096, 3072, 768}, {4096, 768, 3072}};
  double best = 0.0;
  for (const MatmulShape& shape : kShapes) {
    const MatmulBenchOptions options = {
        .dtype = dtype, .threads = threads, .warmup = 1, .repeats = 20, .seconds_limit = 0.3};
    best = std::max(best, time_matmul(shape, options, [] { return false; }).best_tflops());
  }
  return best;
}

}  // namespace meshtrain
