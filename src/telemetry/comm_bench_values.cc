#include "telemetry/comm_bench_values.h"

#include <algorithm>
#include <type_traits>

#include "base/dtype.h"

namespace meshtrain {
namespace {

// Calls visit with a pointer to the tensor's elements.
template <class Visit>
auto with_elements(const Tensor& tensor, const Visit& visit) {
  switch (tensor.dtype()) {
    case DType::kF32:
      return visit(tensor.data<float>());
    case DType::kBF16:
      return visit(tensor.data<BF16>());
    case DType::kF16:
      return visit(tensor.data<F16>());
    case DType::kF64:
      return visit(tensor.data<double>());
    case DType::kI32:
      return visit(tensor.data<std::int32_t>());
    case DType::kI64:
      return visit(tensor.data<std::int64_t>());
    case DType::kU8:
      return visit(tensor.data<std::uint8_t>());
  }
  return visit(static_cast<std::uint8_t*>(nullptr));
}

template <class T>
T element(std::int64_t value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

template <class T>
bool equal(T a, T b) {
  if constexpr (std::is_arithmetic_v<T>) {
    return a == b;
  } else {
    return a.bits == b.bits;
  }
}

bool reduces(CommOp op) {
  return op == CommOp::kAllReduce || op == CommOp::kReduceScatter;
}

std::int64_t reduced_value(ReduceOp op, int ranks, std::int64_t index) {
  std::int64_t result = bench_value(0, index);
  for (int r = 1; r < ranks; ++r) {
    const std::int64_t value = bench_value(r, index);
    if (op == ReduceOp::kMin) {
      result = std::min(result, value);
    } else if (op == ReduceOp::kMax) {
      result = std::max(result, value);
    } else {
      result += value;
    }
  }
  return result;
}

// The average of whole numbers is rounded towards zero, after their sum has wrapped.
template <class T>
T average(std::int64_t sum, int ranks) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(static_cast<T>(sum)) / ranks);
  } else if constexpr (std::is_same_v<T, double>) {
    return static_cast<double>(sum) / ranks;
  } else {
    return T(static_cast<float>(sum) / static_cast<float>(ranks));
  }
}

}  // namespace

void fill_with_bench_values(const Tensor& tensor, int rank) {
  with_elements(tensor, [&]<class T>(T* data) {
    for (std::int64_t i = 0; i < tensor.numel(); ++i) data[i] = element<T>(bench_value(rank, i));
  });
}

std::int64_t count_wrong(const Tensor& out, const CommCall& call, int ranks,
                         const std::function<BenchSource(std::int64_t)>& source_of) {
  return with_elements(out, [&]<class T>(const T* data) {
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < out.numel(); ++i) {
      const BenchSource source = source_of(i);
      const std::int64_t value = reduces(call.op) ? reduced_value(call.reduce, ranks, source.index)
                                                  : bench_value(source.rank, source.index);
      const bool averages = reduces(call.op) && call.reduce == ReduceOp::kAvg;
      if (!equal(data[i], averages ? average<T>(value, ranks) : element<T>(value))) ++wrong;
    }
    return wrong;
  });
}

}  // namespace meshtrain
