// `bench comm` on ranks: where they come from, nccl-tests' table and its JSON.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/terminal.h"
#include "cli/bench.h"
#include "cli/bench_comm.h"
#include "comm/engines.h"
#include "telemetry/units.h"

namespace meshtrain::cli {
namespace {

bool reduces(CommOp op) {
  return op == CommOp::kAllReduce || op == CommOp::kReduceScatter;
}

// What rank 0 prints.
class Report {
 public:
  Report(const CommBench& bench, World& world)
      : bench_(bench),
        ranks_(world.size()),
        engine_(world.engine()),
        out_(bench.json == "-" ? stderr : stdout) {
    const CommBenchOptions& o = bench.options;
    redop_ = reduces(o.op) ? std::string(name_of(o.reduce)) : "none";
    root_ = o.op == CommOp::kBroadcast ? o.root : -1;
    print_line(
        out_, fmt::format("# {} over {}, {} ranks, {} of them on this host; {} warm-up and {} timed iterations",
                          bench_op_name(o.op), engine_, ranks_, world.local_size(), o.warmup, o.iterations));
    const std::size_t columns = terminal_columns(fileno(out_));
    narrow_ = columns > 0 && columns < kFullWidth;
    if (narrow_) {
      print_line(out_,
                 fmt::format("# type {}, redop {}, root {}; they are columns of a file and of a wider terminal",
                             bench_type_name(o.dtype), redop_, root_));
      const std::int64_t most = o.max_bytes;
      size_width_ = std::max<std::size_t>(5, fmt::format("{}", most).size());
      count_width_ = std::max<std::size_t>(7, fmt::format("{}", most / size_of(o.dtype)).size());
    }
    print_headers();
  }

  void add(const CommBenchRow& row) {
    const std::string type = bench_type_name(bench_.options.dtype);
    print_left(fmt::format("{}", row.bytes), fmt::format("{}", row.count), type, redop_,
               fmt::format("{}", root_));
    rows_.push_back({{"size", row.bytes},
                     {"count", row.count},
                     {"type", type},
                     {"redop", redop_},
                     {"root", root_},
                     {"out_of_place", add(row.out_of_place)},
                     {"in_place", add(row.in_place)}});
    fmt::print(out_, "\n");
    std::fflush(out_);
  }

  void finish() {
    const double average = timings_ > 0 ? bus_bandwidth_ / timings_ : 0.0;
    fmt::print(out_, "# wrong elements: {}\n# average bus bandwidth: {:.4g} GB/s\n", wrong_, average);
    if (!bench_.json.empty()) {
      const CommBenchOptions& o = bench_.options;
      write_json(bench_.json, {{"config",
                                {{"engine", engine_},
                                 {"ranks", ranks_},
                                 {"op", bench_op_name(o.op)},
                                 {"min_bytes", o.min_bytes},
                                 {"max_bytes", o.max_bytes},
                                 {"factor", o.factor},
                                 {"warmup", o.warmup},
                                 {"iterations", o.iterations}}},
                               {"results", rows_},
                               {"out_of_bounds", {{"count", wrong_}, {"okay", wrong_ == 0}}},
                               {"average_bus_bandwidth", {{"bandwidth", average}}}});
    }
    if (wrong_ != 0) throw_run_error("{} elements of the results were wrong", wrong_);
  }

 private:
  static constexpr std::size_t kFullWidth = 117;
  static constexpr std::size_t kTimeWidth = 7;
  static constexpr std::size_t kRateWidth = 6;

  // With as many of the decimals as fit.
  static std::string number(double value, int decimals, std::size_t width) {
    std::string text = fmt::format("{:.{}f}", value, decimals);
    while (text.size() > width && decimals > 0) text = fmt::format("{:.{}f}", value, --decimals);
    return text;
  }

  void print_headers() {
    const std::size_t half = narrow_ ? 29 : 34;
    const std::size_t left = narrow_ ? 2 + size_width_ + count_width_ : 49;
    fmt::print(out_, "#{:>{}}{:>{}}\n", "out-of-place", left + half - 1, "in-place", half);
    print_left("size", "count", "type", "redop", "root", '#');
    for (int i = 0; i < 2; ++i) print_half("time", "algbw", "busbw", "#wrong");
    fmt::print(out_, "\n");
    print_left("(B)", narrow_ ? "(elem.)" : "(elements)", "", "", "", '#');
    for (int i = 0; i < 2; ++i) print_half("(us)", "(GB/s)", "(GB/s)", "");
    fmt::print(out_, "\n");
  }

  void print_left(const std::string& size, const std::string& count, const std::string& type,
                  const std::string& redop, const std::string& root, char first = ' ') {
    if (narrow_) {
      fmt::print(out_, "{}{:>{}} {:>{}}", first, size, size_width_, count, count_width_);
    } else {
      fmt::print(out_, "{}{:>12} {:>12} {:>8} {:>7} {:>5}", first, size, count, type, redop, root);
    }
  }

  void print_half(const std::string& time, const std::string& algorithm, const std::string& bus,
                  const std::string& wrong) {
    if (narrow_) {
      fmt::print(out_, " {:>{}} {:>{}} {:>{}} {:>6}", time, kTimeWidth, algorithm, kRateWidth, bus, kRateWidth,
                 wrong);
    } else {
      fmt::print(out_, "  {:>9} {:>7} {:>7} {:>6}", time, algorithm, bus, wrong);
    }
  }

  nlohmann::json add(const std::optional<CommTiming>& timing) {
    if (!timing) {
      print_half("N/A", "N/A", "N/A", "N/A");
      return nullptr;
    }
    const double us = timing->seconds * 1e6;
    print_half(number(us, 2, narrow_ ? kTimeWidth : 9),
               number(timing->algorithm_bandwidth, 3, narrow_ ? kRateWidth : 7),
               number(timing->bus_bandwidth, 3, narrow_ ? kRateWidth : 7), fmt::format("{}", timing->wrong));
    wrong_ += timing->wrong;
    bus_bandwidth_ += timing->bus_bandwidth;
    ++timings_;
    return {{"time", us},
            {"alg_bw", timing->algorithm_bandwidth},
            {"bus_bw", timing->bus_bandwidth},
            {"nwrong", timing->wrong}};
  }

  const CommBench& bench_;
  int ranks_;
  std::string engine_;
  std::FILE* out_;
  bool narrow_ = false;         // without the columns that are the same in every row
  std::size_t size_width_ = 0;  // narrow
  std::size_t count_width_ = 0;
  std::string redop_;
  int root_ = -1;
  nlohmann::json rows_ = nlohmann::json::array();
  double bus_bandwidth_ = 0.0;
  int timings_ = 0;
  std::int64_t wrong_ = 0;
};

void check_root(const CommBench& bench, int ranks) {
  if (bench.options.root < ranks) return;
  throw_user_error("--root {} is none of {} ranks, which count from 0", bench.options.root, ranks);
}

void check_memory(const CommBench& bench, int ranks, int local_ranks) {
  const std::int64_t needed = comm_bench_bytes(bench.options, ranks) * local_ranks;
  const std::int64_t available = make_cpu_device()->available_bytes();
  if (needed <= available) return;
  throw_user_error("--max {} takes {} of memory on {} ranks of this host and {} can be had; choose less",
                   bench.options.max_bytes, format_bytes(needed), local_ranks, format_bytes(available));
}

void measure(const CommBench& bench, World& world) {
  if (world.rank() != 0) return run_comm_bench(world, bench.options, [](const CommBenchRow&) {});
  Report report(bench, world);
  run_comm_bench(world, bench.options, [&](const CommBenchRow& row) { report.add(row); });
  report.finish();
}

// This same command, as ranks that an MPI launcher starts.
[[noreturn]] void start_under_mpirun(int ranks) {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words = {"mpirun", "-n", std::to_string(ranks)};
  std::error_code error;
  words.push_back(std::filesystem::read_symlink("/proc/self/exe", error).string());
  std::string word;
  std::getline(file, word, '\0');  // the name that we were called by
  while (std::getline(file, word, '\0')) words.push_back(word);
  std::vector<char*> argv;
  for (std::string& w : words) argv.push_back(w.data());
  argv.push_back(nullptr);
  // More ranks than cores, said so that launchers of other libraries do not trip over an option: Open MPI 4, 5.
  setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 0);
  // Open MPI asks root to say that root is meant.
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
  setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 0);
  execvp(argv[0], argv.data());
  throw_user_error(
      "engine mpi needs a launcher, and mpirun is not in PATH; install it (Debian: openmpi-bin), or start this "
      "command "
      "with the launcher of your cluster (srun, mpiexec)");
}

void bench_mpi(const CommBench& bench) {
  if (!has_mpi()) make_mpi_world(0, {});  // says so
  const bool native = bench.engine == "mpi-native";
  const CommBenchOptions& o = bench.options;
  if (native && reduces(o.op) && (o.dtype == DType::kBF16 || o.dtype == DType::kF16)) {
    throw_user_error(
        "--type {} over mpi-native: MPI does not add 16-bit floating-point numbers; use --engine mpi",
        bench_type_name(o.dtype));
  }
  const std::optional<WorkerEnvironment> environment = worker_environment();
  if (!environment) {
    const int ranks = bench.ranks.value_or(2);
    check_root(bench, ranks);
    check_memory(bench, ranks, ranks);
    start_under_mpirun(ranks);
  }
  const auto world = make_mpi_world(bench.ranks.value_or(environment->size), {},
                                    native ? MpiCollectives::kNative : MpiCollectives::kOwn);
  check_root(bench, world->size());
  check_memory(bench, world->size(), world->local_size());
  measure(bench, *world);
}

}  // namespace

void bench_comm_engine(const CommBench& bench) {
  if (bench.engine != "shm") return bench_mpi(bench);
  const std::optional<WorkerEnvironment> environment = worker_environment();
  const std::optional<int> asked = environment ? bench.ranks : bench.ranks.value_or(2);
  const int ranks = environment ? environment->size : *asked;
  check_root(bench, ranks);
  check_memory(bench, ranks, ranks);
  run_ranks(asked, bench.ranks_as, "shm", {}, [&](World& world, int /*threads*/) { measure(bench, world); });
}

}  // namespace meshtrain::cli
