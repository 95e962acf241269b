// The rate of matrix products that this machine reaches: what MFU is measured against, and the finder
// behind `meshtrain bench matmul`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/dtype.h"
#include "telemetry/peak_cache.h"

namespace meshtrain {

struct MatmulShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
};

struct MatmulTiming {
  MatmulShape shape;
  std::vector<double> seconds;  // one a timed repetition
  double cpu_seconds = 0.0;     // of this process, all threads, in these repetitions
  // TFLOP/s of the mean, median and shortest time.
  double mean_tflops() const;
  double median_tflops() const;
  double best_tflops() const;
};

struct MatmulBenchOptions {
  DType dtype = DType::kBF16;
  int threads = 1;
  int warmup = 2;
  int repeats = 10;
  // Written and read between repetitions, so that no operand is found in a cache; 0: no flush.
  std::int64_t flush_bytes = 0;
  // Ends the measurement before the repetition after the one that passes it; 0: no limit.
  double seconds_limit = 0.0;
};

// c[m, n] = a[m, k]·b[n, k]ᵀ as a linear layer's forward pass computes it, on random normal operands.
// `stop` is asked between repetitions; an empty result means that it said yes before the first.
MatmulTiming time_matmul(const MatmulShape& shape, const MatmulBenchOptions& options,
                         const std::function<bool()>& stop);

// Bytes that a measurement of `shape` allocates.
std::int64_t matmul_bytes(const MatmulShape& shape, const MatmulBenchOptions& options);

// Of a few shapes of a training step's products, the larger ones only where half a second suffices for them.
KnownPeak quick_peak(DType dtype, int threads);

}  // namespace meshtrain
