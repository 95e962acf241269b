#include "cli/bench_comm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/nearest.h"
#include "cli/bench.h"
#include "cli/commands.h"

namespace meshtrain::cli {
namespace {

struct Arguments {
  std::string engine = "shm";
  std::optional<int> ranks;
  std::string ranks_as = "processes";
  std::string op = "all_reduce";
  std::string type = "float";
  std::string redop = "sum";
  int root = 0;
  std::string min = "1K";
  std::string max = "64M";
  std::int64_t factor = 2;
  int iterations = 20;
  int warmup = 5;
  std::string link = "network";
  std::optional<double> latency_us;
  std::optional<double> gbps;
  std::string json;
};

constexpr std::int64_t kMostBytes = std::int64_t{1} << 50U;

// Names in the order in which they are listed.
template <class T>
using Table = std::vector<std::pair<std::string, T>>;

const Table<CommOp>& ops() {
  static const Table<CommOp> kOps = {
      {"all_reduce", CommOp::kAllReduce},         {"all_gather", CommOp::kAllGather},
      {"reduce_scatter", CommOp::kReduceScatter}, {"broadcast", CommOp::kBroadcast},
      {"all_to_all", CommOp::kAllToAll},          {"sendrecv", CommOp::kExchange}};
  return kOps;
}

// nccl-tests' names, and ours.
const Table<DType>& types() {
  static const Table<DType> kTypes = {
      {"float", DType::kF32}, {"bfloat16", DType::kBF16}, {"half", DType::kF16}, {"double", DType::kF64},
      {"int32", DType::kI32}, {"int64", DType::kI64},     {"uint8", DType::kU8}, {"fp32", DType::kF32},
      {"bf16", DType::kBF16}, {"fp16", DType::kF16},      {"fp64", DType::kF64}};
  return kTypes;
}

template <class T>
std::string names_in(const Table<T>& table) {
  std::vector<std::string> names;
  for (const auto& [name, value] : table) names.push_back(name);
  return fmt::format("{}", fmt::join(names, ", "));
}

// The first one.
template <class T>
std::string name_in(const Table<T>& table, T wanted) {
  for (const auto& [name, value] : table) {
    if (value == wanted) return name;
  }
  return {};
}

template <class T>
T look_up(const char* option, const std::string& name, const Table<T>& table) {
  std::vector<std::string> names;
  for (const auto& [known, value] : table) {
    if (known == name) return value;
    names.push_back(known);
  }
  throw_user_error("{} {} is not known{}. There are: {}.", option, name, nearest_hint(name, names, ""),
                   fmt::join(names, ", "));
}

// "4096", "64M", "1G": K, M, G and T are powers of 1024.
std::int64_t parse_bytes(const char* option, const std::string& text) {
  std::int64_t value = 0;
  const char* const last = text.data() + text.size();
  auto [end, error] = std::from_chars(text.data(), last, value);
  constexpr std::string_view kUnits = "KMGT";
  int shift = 0;
  if (error == std::errc() && end + 1 == last) {
    const std::size_t unit = kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(*end))));
    if (unit != std::string_view::npos) shift = 10 * (static_cast<int>(unit) + 1), ++end;
  }
  if (error != std::errc() || end != last || value < 1 || value > (kMostBytes >> shift)) {
    throw_user_error("{} {} is not a size: give bytes from 1 to 1024T, with K, M, G or T for powers of 1024",
                     option, text);
  }
  return value << shift;
}

Link link_of(const Arguments& a) {
  const Table<LinkKind> kinds = {{"local", LinkKind::kLocal}, {"network", LinkKind::kNetwork}};
  Link link = default_link(look_up("--link", a.link, kinds));
  if (a.latency_us) link.latency_seconds = *a.latency_us * 1e-6;
  if (a.gbps) link.bytes_per_second = *a.gbps * 1e9;
  if (!std::isfinite(link.latency_seconds) || link.latency_seconds < 0.0) {
    throw_user_error("--latency-us {} is not a latency: give microseconds, 0 or more", *a.latency_us);
  }
  if (!std::isfinite(link.bytes_per_second) || link.bytes_per_second <= 0.0) {
    throw_user_error("--gbps {} is not a bandwidth: give 1e9 bytes/s, above 0", *a.gbps);
  }
  return link;
}

void run(const Arguments& a) {
  const Table<bool> engines = {{"shm", true}, {"mpi", true}, {"mpi-native", true}, {"sim", false}};
  const bool real = look_up("--engine", a.engine, engines);
  const Table<ReduceOp> reductions = {
      {"sum", ReduceOp::kSum}, {"avg", ReduceOp::kAvg}, {"min", ReduceOp::kMin}, {"max", ReduceOp::kMax}};
  const Table<RanksAs> kinds = {{"processes", RanksAs::kProcesses}, {"threads", RanksAs::kThreads}};
  CommBench bench;
  bench.engine = a.engine;
  bench.ranks = a.ranks;
  bench.ranks_as = look_up("--ranks-as", a.ranks_as, kinds);
  bench.options = {.op = look_up("--op", a.op, ops()),
                   .dtype = look_up("--type", a.type, types()),
                   .reduce = look_up("--redop", a.redop, reductions),
                   .root = a.root,
                   .min_bytes = parse_bytes("--min", a.min),
                   .max_bytes = parse_bytes("--max", a.max),
                   .factor = a.factor,
                   .warmup = a.warmup,
                   .iterations = a.iterations};
  if (bench.options.min_bytes > bench.options.max_bytes) {
    throw_user_error("--min {} is more than --max {}; exchange them", a.min, a.max);
  }
  bench.link = link_of(a);
  bench.json = a.json;
  check_json_path(a.json);
  real ? bench_comm_engine(bench) : bench_comm_model(bench);
}

constexpr const char* kFooter =
    "Columns are those of nccl-tests, for results beside the inputs and in their place:\n"
    "  size    bytes of the whole: of all_gather, reduce_scatter and all_to_all the\n"
    "          pieces of all ranks\n"
    "  count   elements; of those three: of one piece\n"
    "  time    median of the iterations; each begins after a barrier and takes as\n"
    "          long as its slowest rank\n"
    "  algbw   size / time, in 1e9 bytes/s\n"
    "  busbw   algbw x 2(n-1)/n for all_reduce, (n-1)/n for all_gather,\n"
    "          reduce_scatter and all_to_all, 1 for broadcast and sendrecv, on n ranks\n"
    "  #wrong  elements on all ranks that are wrong after one more operation\n"
    "type, redop and root are the same in every row: a terminal that is too narrow "
    "for all columns shows them above the table.\n"
    "sendrecv: each rank sends to the next one, around a ring.";

}  // namespace

std::string bench_op_name(CommOp op) {
  return name_in(ops(), op);
}

std::string bench_type_name(DType dtype) {
  return name_in(types(), dtype);
}

void add_bench_comm(CLI::App& bench) {
  const auto a = std::make_shared<Arguments>();
  CLI::App* command =
      bench.add_subcommand("comm", "Times collectives on the ranks of an engine, and checks them");
  command->footer(kFooter);
  command
      ->add_option("--engine", a->engine,
                   "shm: ranks of this host; mpi: those of an MPI launcher, which is started where there is "
                   "none; mpi-native: the MPI library's own collectives; sim: nothing runs, a cost model says "
                   "what the algorithms would take")
      ->capture_default_str();
  command->add_option("--ranks", a->ranks, "Default: 2, or as many as the launcher started")
      ->check(whole_number(1, 1 << 20));
  command->add_option("--ranks-as", a->ranks_as, "shm: processes or threads")->capture_default_str();
  command->add_option("--op", a->op, names_in(ops()))->capture_default_str();
  command->add_option("--type", a->type, names_in(types()))->capture_default_str();
  command->add_option("--redop", a->redop, "sum, avg, min or max")->capture_default_str();
  command->add_option("--root", a->root, "Root of a broadcast")
      ->check(whole_number(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--min", a->min, "Smallest size in bytes; K, M, G and T are powers of 1024")
      ->capture_default_str();
  command->add_option("--max", a->max, "Largest size")->capture_default_str();
  command->add_option("--factor", a->factor, "Ratio of each size to the one before it")
      ->check(whole_number(2, 1024))
      ->capture_default_str();
  command->add_option("--iters", a->iterations, "Timed iterations per size")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--warmup", a->warmup, "Untimed iterations before them")
      ->check(whole_number(0, 1'000'000))
      ->capture_default_str();
  const Link local = default_link(LinkKind::kLocal);
  const Link network = default_link(LinkKind::kNetwork);
  command
      ->add_option("--link", a->link,
                   fmt::format("sim: local ({:g} us, {:g} GB/s) or network ({:g} us, {:g} GB/s)",
                               local.latency_seconds * 1e6, local.bytes_per_second / 1e9,
                               network.latency_seconds * 1e6, network.bytes_per_second / 1e9))
      ->capture_default_str();
  command->add_option("--latency-us", a->latency_us, "sim: latency of a message, instead of the link's");
  command->add_option("--gbps", a->gbps,
                      "sim: bandwidth in each direction in 1e9 bytes/s, instead of the link's");
  command
      ->add_option("--json", a->json,
                   "Write the results as JSON to FILE, or to standard output without one; times are in us")
      ->option_text("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
  command->callback([a] { run(*a); });
}

}  // namespace meshtrain::cli
