#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "device/device.h"
#include "ops/processor.h"
#include "telemetry/peak.h"
#include "telemetry/units.h"
#include "train/threads.h"

namespace meshtrain::cli {
namespace {

struct Arguments {
  std::string dtype = "bf16";
  std::vector<std::string> m = {"1024:4096:1024"};
  std::vector<std::string> n = {"768", "1024:4096:1024"};
  std::vector<std::string> k = {"768", "1024:4096:1024"};
  std::int64_t threads = 0;
  int warmup = 2;
  int repeats = 10;
  double flush_mb = 64.0;
  std::string json;
};

std::int64_t parse_size(std::string_view text, std::string_view whole, const char* option) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1 || value > (1 << 24)) {
    throw_user_error(
        "{} {} is not a size: give N, or BEGIN:END:STEP with END included, each from 1 to 16777216", option,
        whole);
  }
  return value;
}

// "512", "512:2048:512" (END included; STEP defaults to BEGIN), several of them.
std::vector<std::int64_t> parse_sizes(const std::vector<std::string>& texts, const char* option) {
  std::vector<std::int64_t> sizes;
  for (const std::string& text : texts) {
    std::vector<std::int64_t> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(':', begin), text.size());
      parts.push_back(parse_size(std::string_view(text).substr(begin, end - begin), text, option));
      begin = end + 1;
    }
    if (parts.size() > 3) throw_user_error("{} {} has more than BEGIN:END:STEP", option, text);
    const std::int64_t last = parts.size() > 1 ? parts[1] : parts[0];
    const std::int64_t step = parts.size() > 2 ? parts[2] : parts[0];
    for (std::int64_t size = parts[0]; size <= last; size += step) sizes.push_back(size);
  }
  if (sizes.empty()) throw_user_error("{} names no size: END lies before BEGIN", option);
  return sizes;
}

struct Best {
  std::optional<MatmulTiming> mean, median, best;

  void see(const MatmulTiming& timing) {
    const auto keep = [&](std::optional<MatmulTiming>& slot, double (MatmulTiming::*rate)() const) {
      if (!slot || (timing.*rate)() > ((*slot).*rate)()) slot = timing;
    };
    keep(mean, &MatmulTiming::mean_tflops);
    keep(median, &MatmulTiming::median_tflops);
    keep(best, &MatmulTiming::best_tflops);
  }
};

nlohmann::json shape_json(const MatmulShape& s) {
  return {{"m", s.m}, {"n", s.n}, {"k", s.k}};
}

void check_largest(const MatmulShape& shape, const MatmulBenchOptions& options) {
  const std::int64_t needed = matmul_bytes(shape, options);
  const std::int64_t available = make_cpu_device()->available_bytes();
  if (needed <= available) return;
  throw_user_error("--m {} --n {} --k {} takes {} of memory and {} can be had; choose smaller sizes", shape.m,
                   shape.n, shape.k, format_bytes(needed), format_bytes(available));
}

nlohmann::json best_json(const Best& best) {
  return {{"mean", {{"tflops", best.mean->mean_tflops()}, {"shape", shape_json(best.mean->shape)}}},
          {"median", {{"tflops", best.median->median_tflops()}, {"shape", shape_json(best.median->shape)}}},
          {"best", {{"tflops", best.best->best_tflops()}, {"shape", shape_json(best.best->shape)}}}};
}

void print_best(const Best& best, const MatmulBenchOptions& options, bool interrupted, std::FILE* out) {
  const auto line = [&](const char* what, double rate, const MatmulShape& s) {
    fmt::print(out, "{:<8} {:9.4f} TFLOP/s at m={} n={} k={}\n", what, rate, s.m, s.n, s.k);
  };
  fmt::print(out, "\nmaximum achievable {} matmul on {} threads{}:\n", name_of(options.dtype), options.threads,
             interrupted ? " (interrupted: of the shapes tried so far)" : "");
  line("mean", best.mean->mean_tflops(), best.mean->shape);
  line("median", best.median->median_tflops(), best.median->shape);
  line("best", best.best->best_tflops(), best.best->shape);
}

// How this processor computes them.
std::string products_of(DType dtype) {
  if (dtype == DType::kBF16) return ops::describe_bf16_products(ops::this_processor());
  return dtype == DType::kF16 ? "fp16 products in fp32" : "fp32";
}

void run(const Arguments& arguments) {
  const std::optional<DType> dtype = parse_dtype(arguments.dtype);
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16) {
    throw_user_error("--dtype {} is not known; use fp32, bf16 or fp16", arguments.dtype);
  }
  if (arguments.repeats < 1 || arguments.warmup < 0 || arguments.flush_mb < 0 || arguments.flush_mb > 65536) {
    throw_user_error("--repeats must be at least 1, --warmup and --flush-mb at least 0 (flush at most 65536)");
  }
  MatmulBenchOptions options;
  options.dtype = *dtype;
  options.threads = resolve_threads(arguments.threads);
  options.warmup = arguments.warmup;
  options.repeats = arguments.repeats;
  options.flush_bytes = static_cast<std::int64_t>(arguments.flush_mb * 1024.0 * 1024.0) / 64 * 64;
  const auto ms = parse_sizes(arguments.m, "--m");
  const auto ns = parse_sizes(arguments.n, "--n");
  const auto ks = parse_sizes(arguments.k, "--k");

  check_largest({.m = *std::max_element(ms.begin(), ms.end()),
                 .n = *std::max_element(ns.begin(), ns.end()),
                 .k = *std::max_element(ks.begin(), ks.end())},
                options);
  check_json_path(arguments.json);

  install_stop_handler();
  // With the JSON on standard output the table goes beside it.
  std::FILE* out = arguments.json == "-" ? stderr : stdout;
  const std::string products = products_of(*dtype);
  fmt::print(out, "TFLOP/s, {}, {} threads\n{:>7} {:>7} {:>7} {:>10} {:>10} {:>10}\n", products,
             options.threads, "m", "n", "k", "mean", "median", "best");
  Best best;
  nlohmann::json rows = nlohmann::json::array();
  for (const std::int64_t m : ms) {
    for (const std::int64_t n : ns) {
      for (const std::int64_t k : ks) {
        const MatmulTiming timing = time_matmul({.m = m, .n = n, .k = k}, options, stop_requested);
        if (timing.seconds.empty()) continue;
        best.see(timing);
        fmt::print(out, "{:>7} {:>7} {:>7} {:>10.4f} {:>10.4f} {:>10.4f}\n", m, n, k, timing.mean_tflops(),
                   timing.median_tflops(), timing.best_tflops());
        std::fflush(out);
        rows.push_back({{"shape", shape_json(timing.shape)},
                        {"repeats", timing.seconds.size()},
                        {"mean_tflops", timing.mean_tflops()},
                        {"median_tflops", timing.median_tflops()},
                        {"best_tflops", timing.best_tflops()}});
      }
    }
  }
  if (!best.best) throw_run_error("interrupted before the first shape was measured");
  print_best(best, options, stop_requested(), out);
  if (arguments.json.empty()) return;
  write_json(arguments.json, {{"dtype", arguments.dtype},
                              {"products", products},
                              {"threads", options.threads},
                              {"warmup", options.warmup},
                              {"repeats", options.repeats},
                              {"flush_bytes", options.flush_bytes},
                              {"interrupted", stop_requested()},
                              {"results", rows},
                              {"maximum", best_json(best)}});
}

}  // namespace

void add_bench_matmul(CLI::App& bench) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      bench.add_subcommand("matmul", "Finds the maximum achievable matrix-product rate over shapes m x n x k");
  command->add_option("--dtype", arguments->dtype, "fp32, bf16 or fp16")->capture_default_str();
  const char* sizes = "N or BEGIN:END:STEP (END included); several";
  command->add_option("--m", arguments->m, sizes)->capture_default_str();
  command->add_option("--n", arguments->n, sizes)->capture_default_str();
  command->add_option("--k", arguments->k, sizes)->capture_default_str();
  command->add_option("--threads", arguments->threads, "0: all cores")->check(whole_number(0));
  command->add_option("--warmup", arguments->warmup, "Untimed repetitions of a shape")->capture_default_str();
  command->add_option("--repeats", arguments->repeats, "Timed repetitions of a shape")->capture_default_str();
  command->add_option("--flush-mb", arguments->flush_mb, "Cache flush between repetitions; 0: none")
      ->capture_default_str();
  command
      ->add_option("--json", arguments->json,
                   "Write the results as JSON to FILE, or to standard output without one")
      ->option_text("[FILE]")
      ->expected(0, 1)
      ->default_str("-");
  command->callback([arguments] { run(*arguments); });
}

}  // namespace meshtrain::cli
