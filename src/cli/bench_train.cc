#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "base/error.h"
#include "base/median.h"
#include "base/philox.h"
#include "base/stopwatch.h"
#include "cli/bench.h"
#include "cli/commands.h"
#include "model/flops.h"
#include "telemetry/units.h"
#include "train/assembly.h"
#include "train/memory_plan.h"
#include "train/run_peak.h"
#include "train/step.h"
#include "train/vocabulary.h"

namespace meshtrain::cli {
namespace {

struct Arguments {
  std::string config;  // a file; empty: made from the options below
  std::vector<std::string> overrides;
  std::string preset = "gpt2-124m";
  std::int64_t batch = 4;
  std::int64_t seq = 1024;
  std::string compute = "bf16";
  std::string recompute = "none";
  std::int64_t micro_steps = 1;
  std::int64_t steps = 5;
  std::int64_t warmup = 1;
  std::int64_t threads = 0;
  double peak_tflops = 0.0;
  RankArguments ranks;
  bool json = false;
};

// Their products and sums stay far from 64 bits.
constexpr std::int64_t kMostSequences = 1 << 20;
constexpr std::int64_t kMostSteps = 1'000'000'000;

// The config of the options, where so many replicas of the model share the batch.
Config config_of_options(const Arguments& a, std::int64_t replicas) {
  std::vector<std::string> overrides = {
      fmt::format("model.preset=\"{}\"", a.preset),
      fmt::format("data.seq_len={}", a.seq),
      fmt::format("train.micro_batch={}", a.batch),
      fmt::format("train.global_batch={}", a.batch * a.micro_steps * replicas),
      fmt::format("train.steps={}", a.steps + a.warmup),
      fmt::format("precision.compute=\"{}\"", a.compute),
      fmt::format("recompute.policy=\"{}\"", a.recompute),
      fmt::format("machine.threads={}", a.threads),
      "optimizer.schedule=\"constant\"",
  };
  overrides.insert(overrides.end(), a.overrides.begin(), a.overrides.end());
  return parse_config("", "bench train", overrides);
}

Config make_config(const Arguments& a) {
  if (!(a.peak_tflops >= 0.0) || !std::isfinite(a.peak_tflops)) {
    throw_user_error("--peak-tflops {} is not a peak: give a number above 0, or 0 to measure it",
                     a.peak_tflops);
  }
  if (!a.config.empty()) return with_vocabulary(load_config(a.config, a.overrides));
  const std::int64_t ranks = std::max<std::int64_t>(a.ranks.ranks, 1);
  const MeshConfig mesh = config_of_options(a, ranks).mesh;
  const std::int64_t replicas = std::max<std::int64_t>(ranks / (mesh.tp * mesh.pp), 1);
  return with_vocabulary(config_of_options(a, replicas));
}

std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocab, const char* purpose) {
  const RandomStream random(1, purpose);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    tokens[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(random.bits(static_cast<std::uint64_t>(i)) %
                                                                    static_cast<std::uint64_t>(vocab));
  }
  return tokens;
}

struct Sample {
  double seconds = 0.0;
  StepResult step;
};

double median_of(const std::vector<Sample>& samples, double (*value)(const Sample&)) {
  std::vector<double> values;
  for (const Sample& s : samples) values.push_back(value(s));
  return median(std::move(values));
}

std::vector<Sample> time_steps(Assembly& assembly, const Arguments& arguments) {
  const Config& config = assembly.config();
  const std::int64_t tokens = config.train.global_batch * config.data.seq_len;
  const auto inputs = random_tokens(tokens, config.model.vocab, "bench/tokens");
  const auto targets = random_tokens(tokens, config.model.vocab, "bench/targets");
  const auto own = static_cast<std::size_t>(assembly.micro_steps() * assembly.micro_batch_shape().tokens());
  const std::size_t first = own * static_cast<std::size_t>(assembly.groups.dp->rank());
  std::vector<Sample> samples;
  bool stopped = false;
  for (std::int64_t i = 0; i < arguments.warmup + arguments.steps && !stopped; ++i) {
    const Stopwatch watch;
    Sample sample;
    sample.step = train_step(
        assembly,
        {.tokens = std::span(inputs).subspan(first, own), .targets = std::span(targets).subspan(first, own)},
        1e-4, i + 1, {.wishes_to_stop = stop_requested});
    stopped = sample.step.stop;
    sample.seconds = watch.seconds();
    if (i >= arguments.warmup) samples.push_back(sample);
  }
  return samples;
}

nlohmann::json measure(const Arguments& arguments, const Config& config, World& world) {
  const std::unique_ptr<Device> device = world.make_device();
  Assembly assembly(config, *device, world, plan_memory(config, *device, world));
  assembly.initialize();
  const int threads = assembly.stream.threads();
  const DType dtype = config.precision.compute;
  const bool given = arguments.peak_tflops > 0.0;
  Config of_peak = config;
  of_peak.machine.peak_tflops = given ? arguments.peak_tflops : -1.0;
  RunPeak run_peak(of_peak, *assembly.groups.control, threads, PeakCache(""));
  // The peak before and after, so that a machine whose speed drifts is not flattered.
  if (!given) run_peak.measure();
  const std::vector<Sample> samples = time_steps(assembly, arguments);
  if (samples.empty()) throw_run_error("interrupted before a step was measured");
  assembly.settle();
  if (!given) run_peak.measure();
  const double peak = run_peak.tflops();

  const auto tokens = static_cast<double>(config.train.global_batch * config.data.seq_len);
  const double seconds = median_of(samples, [](const Sample& s) { return s.seconds; });
  const auto flops = static_cast<double>(model_flops_per_token(config.model, config.data.seq_len));
  const double achieved = tokens * flops / seconds / 1e12;
  return {
      {"preset", config.preset},
      {"parameters", parameter_count(config.model)},
      {"batch", config.train.micro_batch},
      {"seq_len", config.data.seq_len},
      {"micro_steps", assembly.micro_steps()},
      {"compute", name_of(dtype)},
      {"recompute", name_of(config.recompute)},
      {"ranks", world.size()},
      {"zero", config.mesh.zero},
      {"threads", threads},
      {"steps", samples.size()},
      {"seconds_per_step", seconds},
      {"forward_seconds", median_of(samples, [](const Sample& s) { return s.step.forward_seconds; })},
      {"backward_seconds", median_of(samples, [](const Sample& s) { return s.step.backward_seconds; })},
      {"optimizer_seconds", median_of(samples, [](const Sample& s) { return s.step.optimizer_seconds; })},
      {"tokens_per_second", tokens / seconds},
      {"model_flops_per_token", model_flops_per_token(config.model, config.data.seq_len)},
      {"achieved_tflops", achieved},
      {"peak_tflops", peak},
      {"peak_source", given ? "given" : "best matmul measured before and after"},
      {"mfu", achieved / peak},
      {"flop_convention", kFlopConvention},
      {"loss", samples.back().step.loss},
      {"memory", memory_to_json(assembly.peak_memory())},
  };
}

void print(const nlohmann::json& r) {
  fmt::print("{} ({} parameters), batch {} x {} tokens x {} micro-steps\n{}, {} x {}, median of {}\n",
             r["preset"].get<std::string>(), r["parameters"].get<std::int64_t>(),
             r["batch"].get<std::int64_t>(), r["seq_len"].get<std::int64_t>(),
             r["micro_steps"].get<std::int64_t>(), r["compute"].get<std::string>(),
             format_count(r["ranks"].get<std::int64_t>(), "rank"),
             format_count(r["threads"].get<std::int64_t>(), "thread"),
             format_count(r["steps"].get<std::int64_t>(), "step"));
  fmt::print("tokens/s   {:10.1f}\n", r["tokens_per_second"].get<double>());
  fmt::print("step       {:10.4f} s\n", r["seconds_per_step"].get<double>());
  fmt::print("forward    {:10.4f} s\n", r["forward_seconds"].get<double>());
  fmt::print("backward   {:10.4f} s (head, loss and reductions included)\n",
             r["backward_seconds"].get<double>());
  fmt::print("optimizer  {:10.4f} s (norm and clipping included)\n", r["optimizer_seconds"].get<double>());
  fmt::print("MFU        {:10.1f} % of {:.4f} TFLOP/s ({})\n", 100.0 * r["mfu"].get<double>(),
             r["peak_tflops"].get<double>(), r["peak_source"].get<std::string>());
}

}  // namespace

void add_bench_train(CLI::App& bench) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = bench.add_subcommand("train", "Times training steps of a preset on random tokens");
  CLI::Option* config =
      command->add_option("--config", arguments->config, "TOML file, instead of the options below");
  add_overrides(*command, arguments->overrides);
  command->add_option("--preset", arguments->preset, "Model")->excludes(config)->capture_default_str();
  command->add_option("--batch", arguments->batch, "Sequences a micro-batch")
      ->check(whole_number(1, kMostSequences))
      ->excludes(config)
      ->capture_default_str();
  command->add_option("--seq", arguments->seq, "Tokens a sequence")
      ->check(whole_number(1))
      ->excludes(config)
      ->capture_default_str();
  command->add_option("--compute", arguments->compute, "fp32, bf16 or fp16")
      ->excludes(config)
      ->capture_default_str();
  command->add_option("--recompute", arguments->recompute, "none, selective or full")
      ->excludes(config)
      ->capture_default_str();
  command->add_option("--micro-steps", arguments->micro_steps, "Micro-batches a step")
      ->check(whole_number(1, kMostSequences))
      ->excludes(config)
      ->capture_default_str();
  command->add_option("--steps", arguments->steps, "Timed steps")
      ->check(whole_number(1, kMostSteps))
      ->capture_default_str();
  command->add_option("--warmup", arguments->warmup, "Untimed steps before them")
      ->check(whole_number(0, kMostSteps))
      ->capture_default_str();
  command->add_option("--threads", arguments->threads, "0: all cores")
      ->check(whole_number(0))
      ->excludes(config);
  command->add_option("--peak-tflops", arguments->peak_tflops, "What MFU is measured against; 0: measure it");
  add_rank_arguments(*command, arguments->ranks);
  command->add_flag("--json", arguments->json, "Print JSON");
  command->callback([arguments] {
    install_stop_handler();
    run_on_ranks(make_config(*arguments), arguments->ranks, [&](const Config& own, World& world) {
      const nlohmann::json result = measure(*arguments, own, world);
      if (world.rank() > 0) return;
      if (arguments->json) {
        fmt::print("{}\n", result.dump(2));
      } else {
        print(result);
      }
    });
  });
}

}  // namespace meshtrain::cli
