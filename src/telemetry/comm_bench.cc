#include "telemetry/comm_bench.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/median.h"
#include "base/stopwatch.h"
#include "comm/agreement.h"
#include "telemetry/comm_bench_values.h"

namespace meshtrain {
namespace {

bool in_pieces(CommOp op) {
  return op == CommOp::kReduceScatter || op == CommOp::kAllGather || op == CommOp::kAllToAll;
}

std::int64_t pieces(CommOp op, int ranks) {
  return in_pieces(op) ? ranks : 1;
}

std::int64_t count_of(const CommBenchOptions& options, std::int64_t bytes, int ranks) {
  return std::max<std::int64_t>(1, bytes / size_of(options.dtype) / pieces(options.op, ranks));
}

// Of what goes in and of what comes out: as large as the whole, which is the most that either takes.
std::int64_t buffer_bytes(const CommBenchOptions& options, int ranks) {
  return count_of(options, options.max_bytes, ranks) * pieces(options.op, ranks) * size_of(options.dtype);
}

class Bench {
 public:
  Bench(World& world, const CommBenchOptions& options)
      : world_(world),
        options_(options),
        device_(world.make_device()),
        in_(device_->allocate(buffer_bytes(options, world.size()), MemoryCategory::kCommunication)),
        out_(device_->allocate(buffer_bytes(options, world.size()), MemoryCategory::kCommunication)),
        comm_(world.everyone("bench")) {}

  CommBenchRow measure(std::int64_t bytes) {
    CommBenchRow row;
    row.count = count_of(options_, bytes, ranks());
    row.bytes = row.count * pieces(options_.op, ranks()) * size_of(options_.dtype);
    row.out_of_place = measure(row, Form::kOutOfPlace);
    if (options_.op != CommOp::kAllToAll && options_.op != CommOp::kExchange) {
      row.in_place = measure(row, Form::kInPlace);
    }
    return row;
  }

 private:
  enum class Form : std::uint8_t { kOutOfPlace, kInPlace };
  struct Tensors {
    Tensor in;
    Tensor out;
  };

  int ranks() const { return world_.size(); }
  int rank() const { return world_.rank(); }

  Tensors tensors(std::int64_t count, Form form) const {
    const std::int64_t whole = count * pieces(options_.op, ranks());
    const std::int64_t in = options_.op == CommOp::kAllGather ? count : whole;
    const std::int64_t out = options_.op == CommOp::kReduceScatter ? count : whole;
    const Tensor all_out = tensor_in(out_, 0, options_.dtype, {whole});
    if (form == Form::kOutOfPlace) {
      return {tensor_in(in_, 0, options_.dtype, {in}), all_out.slice(0, 0, out)};
    }
    const auto own_piece = [&](std::int64_t length) {
      return length == whole ? all_out : all_out.slice(0, rank() * count, count);
    };
    return {own_piece(in), own_piece(out)};
  }

  void run(const Tensors& t) {
    switch (options_.op) {
      case CommOp::kBarrier:
        break;
      case CommOp::kBroadcast:
        // Ours is always in place; out of place its root copies.
        if (rank() == options_.root && t.in.raw() != t.out.raw()) {
          std::memcpy(t.out.raw(), t.in.raw(), static_cast<std::size_t>(t.in.bytes()));
        }
        return comm_->broadcast(t.out, options_.root);
      case CommOp::kAllReduce:
        return comm_->all_reduce(t.in, t.out, options_.reduce);
      case CommOp::kReduceScatter:
        return comm_->reduce_scatter(t.in, t.out, options_.reduce);
      case CommOp::kAllGather:
        return comm_->all_gather(t.in, t.out);
      case CommOp::kAllToAll: {
        const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks()), t.in.numel() / ranks());
        return comm_->all_to_all(t.in, counts, t.out, counts);
      }
      case CommOp::kExchange: {
        const Transfer send{(rank() + 1) % ranks(), t.in};
        const Transfer receive{(rank() + ranks() - 1) % ranks(), t.out};
        return comm_->exchange({&send, 1}, {&receive, 1});
      }
    }
  }

  BenchSource source_of(std::int64_t i, std::int64_t count) const {
    switch (options_.op) {
      case CommOp::kReduceScatter:
        return {0, rank() * count + i};
      case CommOp::kAllGather:
        return {static_cast<int>(i / count), i % count};
      case CommOp::kAllToAll:
        return {static_cast<int>(i / count), rank() * count + i % count};
      case CommOp::kBroadcast:
        return {options_.root, i};
      case CommOp::kExchange:
        return {(rank() + ranks() - 1) % ranks(), i};
      case CommOp::kAllReduce:
      case CommOp::kBarrier:
        break;
    }
    return {0, i};
  }

  CommTiming measure(const CommBenchRow& row, Form form) {
    const Tensors t = tensors(row.count, form);
    std::memset(t.out.raw(), 0xFF, static_cast<std::size_t>(t.out.bytes()));
    fill_with_bench_values(t.in, rank());
    CommTiming timing;
    timing.seconds = median_seconds(t);
    timing.algorithm_bandwidth = static_cast<double>(row.bytes) / timing.seconds / 1e9;
    timing.bus_bandwidth = timing.algorithm_bandwidth * bus_factor(options_.op, ranks());
    std::memset(t.out.raw(), 0xFF, static_cast<std::size_t>(t.out.bytes()));
    fill_with_bench_values(t.in, rank());
    run(t);
    const CommCall call{.op = options_.op, .dtype = options_.dtype, .reduce = options_.reduce};
    const std::int64_t wrong =
        count_wrong(t.out, call, ranks(), [&](std::int64_t i) { return source_of(i, row.count); });
    timing.wrong = sum_of_ranks(*comm_, wrong, Traffic::kControl);
    return timing;
  }

  double median_seconds(const Tensors& t) {
    for (int i = 0; i < options_.warmup; ++i) run(t);
    std::vector<double> seconds;
    for (int i = 0; i < options_.iterations; ++i) {
      comm_->barrier();
      const Stopwatch watch;
      run(t);
      seconds.push_back(watch.seconds());
    }
    const Tensor times(seconds.data(), DType::kF64, {options_.iterations});
    comm_->all_reduce(times, times, ReduceOp::kMax);
    return median(seconds);
  }

  World& world_;
  const CommBenchOptions& options_;
  std::unique_ptr<Device> device_;
  Buffer in_;
  Buffer out_;
  std::unique_ptr<Communicator> comm_;
};

}  // namespace

double bus_factor(CommOp op, int ranks) {
  const double pass = static_cast<double>(ranks - 1) / ranks;
  if (op == CommOp::kAllReduce) return 2.0 * pass;
  return in_pieces(op) ? pass : 1.0;
}

std::int64_t comm_bench_bytes(const CommBenchOptions& options, int ranks) {
  return 2 * buffer_bytes(options, ranks);
}

void run_comm_bench(World& world, const CommBenchOptions& options,
                    const std::function<void(const CommBenchRow&)>& on_row) {
  Bench bench(world, options);
  for (std::int64_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= options.factor) {
    on_row(bench.measure(bytes));
  }
}

}  // namespace meshtrain
