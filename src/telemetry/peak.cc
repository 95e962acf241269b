#include "telemetry/peak.h"

#include <time.h>

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

double flops_of(const MatmulShape& s) {
  return 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
}

double tflops(const MatmulShape& shape, double seconds) {
  return seconds > 0.0 ? flops_of(shape) / seconds / 1e12 : 0.0;
}

// Of this process, all threads.
double cpu_seconds_so_far() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
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
  MatmulTiming timing{.shape = shape, .seconds = {}, .cpu_seconds = 0.0};
  if (stop()) return timing;
  Operands operands(shape, options);
  const Stopwatch whole;
  const auto late = [&] { return options.seconds_limit > 0.0 && whole.seconds() >= options.seconds_limit; };
  for (int i = 0; i < options.warmup && !stop(); ++i) operands.multiply();
  for (int i = 0; i < options.repeats && !stop(); ++i) {
    operands.flush();
    const double cpu_before = cpu_seconds_so_far();
    const Stopwatch one;
    operands.multiply();
    timing.seconds.push_back(one.seconds());
    timing.cpu_seconds += cpu_seconds_so_far() - cpu_before;
    if (late()) break;
  }
  return timing;
}

KnownPeak quick_peak(DType dtype, int threads) {
  constexpr double kSeconds = 0.5;      // in all
  constexpr double kUndisturbed = 0.8;  // part of their time that the threads had their cores
  // Shapes of a training step's products, the last ones large enough for every blocking.
  constexpr MatmulShape kShapes[] = {
      {512, 512, 512}, {1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 3072, 768}, {4096, 768, 3072}};
  KnownPeak peak;
  const Stopwatch whole;
  for (const MatmulShape& shape : kShapes) {
    const double left = kSeconds - whole.seconds();
    // A first product to warm up, and two that count.
    const double expected = peak.tflops > 0.0 ? 3.0 * flops_of(shape) / (peak.tflops * 1e12) : 0.0;
    if (expected > left) continue;
    const MatmulBenchOptions options = {
        .dtype = dtype, .threads = threads, .warmup = 1, .repeats = 20, .seconds_limit = left / 3.0};
    const MatmulTiming timing = time_matmul(shape, options, [] { return false; });
    if (timing.best_tflops() <= peak.tflops) continue;
    const double seconds = std::accumulate(timing.seconds.begin(), timing.seconds.end(), 0.0);
    peak = {.tflops = timing.best_tflops(),
            .undisturbed = timing.cpu_seconds >= kUndisturbed * threads * seconds};
  }
  return peak;
}

}  // namespace meshtrain
