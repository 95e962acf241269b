// `bench comm --engine sim`: what each algorithm would cost.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "cli/bench.h"
#include "cli/bench_comm.h"

namespace meshtrain::cli {

void bench_comm_model(const CommBench& bench) {
  const CommBenchOptions& o = bench.options;
  if (o.op == CommOp::kAllToAll || o.op == CommOp::kExchange) {
    throw_user_error(
        "--op {} has no cost model; engine sim has all_reduce, all_gather, reduce_scatter and broadcast",
        bench_op_name(o.op));
  }
  const int ranks = bench.ranks.value_or(2);
  std::FILE* out = bench.json == "-" ? stderr : stdout;
  fmt::print(out, "# {} on {} ranks by the cost model: {:g} us and {:g} GB/s a message and link\n",
             bench_op_name(o.op), ranks, bench.link.latency_seconds * 1e6, bench.link.bytes_per_second / 1e9);
  fmt::print(out, "# link: bytes in and out on the busiest link\n#{:>12}", "size");
  for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms) {
    fmt::print(out, "  {:>31}", name_of(algorithm));
  }
  fmt::print(out, "  {:>16}\n#{:>12}", "cheapest", "(B)");
  for (std::size_t i = 0; i < kCollectiveAlgorithms.size(); ++i) {
    fmt::print(out, "  {:>14} {:>16}", "time (us)", "link (B)");
  }
  fmt::print(out, "\n");
  nlohmann::json rows = nlohmann::json::array();
  for (std::int64_t bytes = o.min_bytes; bytes <= o.max_bytes; bytes *= o.factor) {
    const std::string best(name_of(cheapest(o.op, ranks, bytes, bench.link)));
    fmt::print(out, "{:>13}", bytes);
    nlohmann::json algorithms;
    for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms) {
      const CollectiveCost cost = collective_cost(o.op, algorithm, ranks, bytes, bench.link);
      fmt::print(out, "  {:>14.2f} {:>16}", cost.seconds * 1e6, cost.link_bytes);
      algorithms[std::string(name_of(algorithm))] = {{"time", cost.seconds * 1e6},
                                                     {"steps", cost.steps},
                                                     {"sent_bytes", cost.sent_bytes},
                                                     {"link_bytes", cost.link_bytes},
                                                     {"total_bytes", cost.total_bytes}};
    }
    fmt::print(out, "  {:>16}\n", best);
    rows.push_back({{"size", bytes}, {"algorithms", algorithms}, {"cheapest", best}});
  }
  if (bench.json.empty()) return;
  write_json(bench.json, {{"config",
                           {{"engine", "sim"},
                            {"ranks", ranks},
                            {"op", bench_op_name(o.op)},
                            {"latency_us", bench.link.latency_seconds * 1e6},
                            {"gbps", bench.link.bytes_per_second / 1e9}}},
                          {"results", rows}});
}

}  // namespace meshtrain::cli
