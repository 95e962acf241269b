#include <fmt/format.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/median.h"
#include "base/stopwatch.h"
#include "base/terminal.h"
#include "base/text_table.h"
#include "checkpoint/checkpoint_writer.h"
#include "checkpoint/disk_speed.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "comm/agreement.h"
#include "comm/engines.h"
#include "launch/launch.h"
#include "telemetry/units.h"

namespace meshtrain::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

struct Arguments {
  std::int64_t mebibytes = 512;
  std::int64_t rounds = 5;
  std::string dir = ".";
  RankArguments ranks;
  std::string json;
};

// Seconds.
struct Round {
  double plain = 0.0;
  double checkpoint = 0.0;
  double held = 0.0;   // async: until training goes on
  double async = 0.0;  // and until it is committed
};

// A new folder in `parent`, removed with all that is in it.
class ScratchFolder {
 public:
  explicit ScratchFolder(const std::string& parent) {
    path_ = (fs::path(parent) / "meshtrain_bench_XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) {
      throw_user_error("--dir {}: no folder can be made there ({}); name another", parent,
                       std::strerror(errno));
    }
  }
  ~ScratchFolder() {
    clear();
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  void clear() const {
    std::error_code ignored;
    for (const fs::directory_entry& entry : fs::directory_iterator(path_, ignored)) {
      fs::remove_all(entry.path(), ignored);
    }
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A rank's share of masters and two states a parameter, as a run with Adam has them, in matrices of 16 MiB at
// most.
class State {
 public:
  State(std::int64_t bytes, int rank) : rank_(rank) {
    constexpr std::int64_t kColumns = 64;
    constexpr std::int64_t kMostRows = 65536;
    for (std::int64_t left = bytes / (kKinds * kColumns * size_of(DType::kF32)); left > 0; left -= kMostRows) {
      shapes_.push_back({std::min(left, kMostRows), kColumns});
    }
    const std::vector<std::byte> block = incompressible(kMiB);
    values_.resize(static_cast<std::size_t>(this->bytes()));
    for (std::size_t i = 0; i < values_.size(); i += block.size()) {
      std::memcpy(values_.data() + i, block.data(), std::min(block.size(), values_.size() - i));
    }
  }

  std::int64_t bytes() const {
    std::int64_t elements = 0;
    for (const Shape& shape : shapes_) elements += kKinds * shape.numel();
    return elements * size_of(DType::kF32);
  }
  CheckpointContents contents(std::int64_t step) const {
    CheckpointContents result;
    result.step = step;
    const std::byte* next = values_.data();
    const auto add = [&](std::vector<SavedPiece>& to, const std::string& name, const Shape& shape) {
      to.push_back({.name = name, .shape = shape, .range = whole_range(shape), .data = next});
      next += to.back().bytes();
    };
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      const std::string name = fmt::format("rank{}.{}", rank_, i);
      add(result.model, name, shapes_[i]);
      add(result.optimizer, name + ".m", shapes_[i]);
      add(result.optimizer, name + ".v", shapes_[i]);
    }
    return result;
  }

 private:
  static constexpr std::int64_t kKinds = 3;
  int rank_;
  std::vector<Shape> shapes_;
  std::vector<std::byte> values_;
};

// One rank of the measurement. Rank 0 keeps the time and clears up.
class Bench {
 public:
  Bench(const Arguments& arguments, World& world)
      : control_(world.everyone("bench")),
        writers_(world.everyone("bench checkpoints")),
        state_(arguments.mebibytes * kMiB / world.size(), world.rank()) {
    if (leads()) folder_.emplace(arguments.dir);
    directory_ = text_of_first(*control_, leads() ? folder_->path() : "");
    copy_.resize(static_cast<std::size_t>(state_.bytes()));
    bytes_ = sum_of_ranks(*control_, state_.bytes(), Traffic::kOther);
  }

  std::int64_t bytes() const { return bytes_; }

  Round measure() {
    Round round;
    if (leads()) round.plain = write_plain_file(directory_, bytes_).seconds;
    CheckpointWriter waits({.directory = directory_, .keep = 0, .async = false, .copy = {}, .hook = {}},
                           writers_.get());
    round.checkpoint = timed([&] { waits.write(state_.contents(1)); });
    CheckpointWriter goes_on({.directory = directory_, .keep = 0, .async = true, .copy = copy_, .hook = {}},
                             writers_.get());
    const Stopwatch watch;
    round.held = timed([&] { goes_on.write(state_.contents(2)); }, /*and_clear=*/false);
    goes_on.flush();
    round.async = watch.seconds();
    clear();
    return round;
  }

 private:
  bool leads() const { return control_->rank() == 0; }

  void clear() {
    control_->barrier();
    if (leads()) folder_->clear();
    control_->barrier();
  }

  template <class Body>
  double timed(const Body& body, bool and_clear = true) {
    control_->barrier();
    const Stopwatch watch;
    body();
    const double seconds = watch.seconds();
    if (and_clear) clear();
    return seconds;
  }

  std::unique_ptr<Communicator> control_;
  std::unique_ptr<Communicator> writers_;
  State state_;
  std::optional<ScratchFolder> folder_;
  std::string directory_;
  std::vector<std::byte> copy_;
  std::int64_t bytes_ = 0;
};

double median_of(const std::vector<Round>& rounds, double (*value)(const Round&)) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(value(round));
  return median(std::move(values));
}

nlohmann::json to_json(const std::vector<Round>& rounds, std::int64_t bytes, int ranks,
                       const std::string& dir) {
  const auto speed = [&](double seconds) -> nlohmann::json {
    return {{"seconds", seconds}, {"bytes_per_second", static_cast<double>(bytes) / seconds}};
  };
  return {{"bytes", bytes},
          {"ranks", ranks},
          {"rounds", rounds.size()},
          {"dir", fs::absolute(dir).lexically_normal().string()},
          {"plain", speed(median_of(rounds, [](const Round& r) { return r.plain; }))},
          {"checkpoint", speed(median_of(rounds, [](const Round& r) { return r.checkpoint; }))},
          {"async_held", speed(median_of(rounds, [](const Round& r) { return r.held; }))},
          {"async", speed(median_of(rounds, [](const Round& r) { return r.async; }))},
          {"ratio", median_of(rounds, [](const Round& r) { return r.plain / r.checkpoint; })},
          {"async_ratio", median_of(rounds, [](const Round& r) { return r.plain / r.async; })}};
}

void print(const nlohmann::json& result) {
  print_line(stdout, fmt::format("a checkpoint of {} by {} in {}, median of {}",
                                 format_bytes(result["bytes"].get<std::int64_t>()),
                                 format_count(result["ranks"].get<std::int64_t>(), "rank"),
                                 result["dir"].get<std::string>(),
                                 format_count(result["rounds"].get<std::int64_t>(), "round")));
  TextTable table("", {{"seconds"}, {"GB/s"}, {"of a plain file's speed"}});
  const auto row = [&](const char* name, const char* key, const char* ratio) {
    const nlohmann::json& speed = result[key];
    const std::string part =
        ratio == nullptr ? "" : fmt::format("{:.1f} %", 100.0 * result[ratio].get<double>());
    table.add(name, {fmt::format("{:.4f}", speed["seconds"].get<double>()),
                     fmt::format("{:.3f}", speed["bytes_per_second"].get<double>() * 1e-9), part});
  };
  row("a plain file, written and synced", "plain", nullptr);
  row("a checkpoint, committed", "checkpoint", "ratio");
  row("async: training stands still", "async_held", nullptr);
  row("async: committed", "async", "async_ratio");
  fmt::print("{}", table.text());
}

void check_possible(const Arguments& arguments, std::int64_t ranks) {
  const std::int64_t bytes = arguments.mebibytes * kMiB;
  if (!fs::is_directory(arguments.dir)) {
    throw_user_error("--dir {} is not a folder; name one on the disk to be measured", arguments.dir);
  }
  std::error_code error;
  const std::uintmax_t free = fs::space(arguments.dir, error).available;
  if (!error && free < static_cast<std::uintmax_t>(bytes + bytes / 8)) {
    throw_user_error("--mb {} does not fit on the disk of --dir {}, where {} are free; choose less",
                     arguments.mebibytes, arguments.dir, format_bytes(static_cast<std::int64_t>(free)));
  }
  const std::int64_t memory = make_cpu_device()->available_bytes();
  if (2 * bytes > memory) {
    throw_user_error(
        "--mb {} takes {} of memory, for state and a copy, on {} ranks and {} can be had; choose less",
        arguments.mebibytes, format_bytes(2 * bytes), ranks, format_bytes(memory));
  }
}

void run(const Arguments& arguments) {
  check_json_path(arguments.json);
  const std::optional<WorkerEnvironment> environment = worker_environment();
  std::optional<int> asked;
  if (arguments.ranks.ranks > 0) asked = static_cast<int>(arguments.ranks.ranks);
  if (!environment && !asked) asked = 1;
  check_possible(arguments, environment ? environment->size : *asked);
  install_stop_handler();
  const RanksAs ranks_as = arguments.ranks.ranks_as == "threads" ? RanksAs::kThreads : RanksAs::kProcesses;
  run_ranks(asked, ranks_as, "auto", {}, [&](World& world, int /*threads*/) {
    Bench bench(arguments, world);
    const std::unique_ptr<Communicator> control = world.everyone("bench rounds");
    std::vector<Round> rounds;
    for (std::int64_t i = 0; i <= arguments.rounds && !any_rank(*control, stop_requested()); ++i) {
      const Round round = bench.measure();
      if (i > 0) rounds.push_back(round);  // the first touches memory and folders
    }
    if (rounds.empty()) throw_run_error("interrupted before a round was measured");
    if (world.rank() > 0) return;
    const nlohmann::json result = to_json(rounds, bench.bytes(), world.size(), arguments.dir);
    if (!arguments.json.empty()) write_json(arguments.json, result);
    if (arguments.json != "-") print(result);
  });
}

}  // namespace

void add_bench_checkpoint(CLI::App& bench) {
  const auto a = std::make_shared<Arguments>();
  CLI::App* command = bench.add_subcommand(
      "checkpoint", "Times checkpoints, beside a plain file of as many bytes that is written and synced");
  command->add_option("--mb", a->mebibytes, "Size of a checkpoint in MiB, of all ranks together")
      ->check(whole_number(1, 1 << 20))
      ->capture_default_str();
  command->add_option("--dir", a->dir, "Folder on the disk to measure; nothing stays in it")
      ->capture_default_str();
  command->add_option("--rounds", a->rounds, "Timed rounds, after an untimed one")
      ->check(whole_number(1, 1000))
      ->capture_default_str();
  add_rank_arguments(*command, a->ranks);
  command->add_option("--json", a->json, "Write the results as JSON to FILE, or to standard output without one")
      ->option_text("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
  command->callback([a] { run(*a); });
}

}  // namespace meshtrain::cli
