// `bench comm --engine sim`: what each algorithm would cost.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/terminal.h"
#include "base/text_table.h"
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
  print_line(out, fmt::format("# {} on {} ranks by the cost model: {:g} us and {:g} GB/s a message and link",
                              bench_op_name(o.op), ranks, bench.link.latency_seconds * 1e6,
                              bench.link.bytes_per_second / 1e9));
  std::vector<TextTable::Column> names;
  std::vector<TextTable::Column> names_of_times;
  for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms) {
    names.push_back({std::string(name_of(algorithm))});
    names_of_times.push_back({names.back().header + "  "});
  }
  TextTable links("size (B)", std::move(names));
  TextTable times("size (B)", std::move(names_of_times));
  nlohmann::json rows = nlohmann::json::array();
  for (std::int64_t bytes = o.min_bytes; bytes <= o.max_bytes; bytes *= o.factor) {
    const CollectiveAlgorithm best = cheapest(o.op, ranks, bytes, bench.link);
    std::vector<std::string> row_times;
    std::vector<std::string> row_links;
    nlohmann::json algorithms;
    for (const CollectiveAlgorithm algorithm : kCollectiveAlgorithms) {
      const CollectiveCost cost = collective_cost(o.op, algorithm, ranks, bytes, bench.link);
      row_times.push_back(fmt::format("{:.2f} {}", cost.seconds * 1e6, algorithm == best ? '*' : ' '));
      row_links.push_back(fmt::format("{}", cost.link_bytes));
      algorithms[std::string(name_of(algorithm))] = {{"time", cost.seconds * 1e6},
                                                     {"steps", cost.steps},
                                                     {"sent_bytes", cost.sent_bytes},
                                                     {"link_bytes", cost.link_bytes},
                                                     {"total_bytes", cost.total_bytes}};
    }
    times.add(fmt::format("{}", bytes), std::move(row_times));
    links.add(fmt::format("{}", bytes), std::move(row_links));
    rows.push_back({{"size", bytes}, {"algorithms", algorithms}, {"cheapest", name_of(best)}});
  }
  fmt::print(out, "# time in us; * is the cheapest\n{}# bytes in and out on the busiest link\n{}", times.text(),
             links.text());
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
