#include "train/run.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "data/sampler.h"
#include "data/token_source.h"
#include "data/tokenizer.h"
#include "model/flops.h"
#include "telemetry/metrics.h"
#include "telemetry/peak.h"
#include "telemetry/progress.h"
#include "telemetry/units.h"
#include "train/assembly.h"
#include "train/checkpointing.h"
#include "train/evaluation.h"
#include "train/run_folder.h"
#include "train/step.h"
#include "train/vocabulary.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The token files of a run, checked against the model's vocabulary.
class RunData {
 public:
  RunData(const Config& config, const Tokenizer& tokenizer) {
    if (config.data.train.empty()) {
      throw_user_error("data.train is not set: name a text file, or token files made by `meshtrain tokenize`");
    }
    train_source_ = open(config.data.train, config, tokenizer);
    train_.emplace(
        *train_source_,
        BatchOptions{.seq_len = config.data.seq_len, .seed = config.train.seed, .vocab = config.model.vocab});
    if (config.data.valid.empty()) return;
    valid_source_ = open(config.data.valid, config, tokenizer);
    valid_.emplace(*valid_source_,
                   BatchOptions{.seq_len = config.data.seq_len, .shuffle = false, .vocab = config.model.vocab});
  }

  const BatchSampler& train() const { return *train_; }
  const std::optional<BatchSampler>& valid() const { return valid_; }

 private:
  static std::unique_ptr<TokenSource> open(const std::string& path, const Config& config,
                                           const Tokenizer& tokenizer) {
    std::unique_ptr<TokenSource> source = open_token_source(path, &tokenizer);
    check_vocabulary(*source, config.model.vocab);
    return source;
  }

  std::unique_ptr<TokenSource> train_source_;
  std::unique_ptr<TokenSource> valid_source_;
  std::optional<BatchSampler> train_;
  std::optional<BatchSampler> valid_;
};

// Refuses what does not fit before anything is allocated.
ArenaSizes plan_memory(const Config& config, const Device& device) {
  const ArenaSizes sizes = measure_arenas(config);
  const std::unique_ptr<Device> sim = make_sim_device();
  const MemoryUse need = Assembly(config, *sim, sizes).planned_memory();
  const std::int64_t available = device.available_bytes();
  if (need.total() > available) {
    throw_user_error(
        "this run needs {} of memory and {} can be had; lower train.micro_batch or data.seq_len, set "
        "recompute.policy = \"full\", or take a smaller model. By category:\n{}",
        format_bytes(need.total()), format_bytes(available), memory_table(need));
  }
  return sizes;
}

class Run {
 public:
  Run(const Config& config, const Tokenizer& tokenizer, const RunOptions& options)
      : config_(config),
        tokenizer_(tokenizer),
        options_(options),
        data_(config, tokenizer),
        device_(make_cpu_device()),
        assembly_(config, *device_, plan_memory(config, *device_)) {
    start();
    writer_.emplace(config_.checkpoint.dir, config_.checkpoint.keep, config_.checkpoint.async);
    write_whole_file((fs::path(config_.output.dir) / "config.toml").string(), to_toml(config_));
    metrics_.emplace((fs::path(config_.output.dir) / "metrics.jsonl").string(),
                     resumed_ ? std::optional(place_.step) : std::nullopt);
    peak_tflops_ = config_.machine.peak_tflops;
    if (peak_tflops_ < 0.0)
      peak_tflops_ = quick_peak_tflops(config_.precision.compute, assembly_.stream.threads());
  }

  void loop() {
    ProgressOptions progress_options = progress_options_for(stderr);
    progress_options.total_steps = config_.train.steps;
    if (peak_tflops_ > 0.0) {
      progress_options.mfu_convention = fmt::format("{}, of {:.3f} TFLOP/s in {}", kFlopConvention,
                                                    peak_tflops_, name_of(config_.precision.compute));
    }
    Progress progress(stderr, progress_options);
    bool stopped = false;
    while (place_.step < config_.train.steps && !stopped) {
      step(progress);
      stopped = options_.stop_requested() || place_.step == options_.stop_at_step;
      const bool last = place_.step == config_.train.steps;
      const bool evaluate_now =
          last || (config_.train.eval_every > 0 && place_.step % config_.train.eval_every == 0);
      if (evaluate_now && !stopped) evaluate_and_record(progress);
      const bool save_now = config_.checkpoint.every > 0 && place_.step % config_.checkpoint.every == 0;
      if (save_now || last || stopped) save();
    }
    progress.finish();
    writer_->flush();
    write_summary();
    report(stopped && place_.step < config_.train.steps);
  }

 private:
  // Initial weights, or those of a checkpoint.
  void start() {
    std::string from = options_.resume_from;
    if (from.empty() && options_.resume) {
      const std::optional<CheckpointPlace> newest = newest_checkpoint(config_.checkpoint.dir);
      if (newest) {
        from = newest->path;
      } else {
        notice("no checkpoint in {}: starting at step 1", config_.checkpoint.dir);
      }
    }
    assembly_.initialize();
    if (from.empty()) {
      start_new();
      return;
    }
    resumed_ = true;
    place_ = restore(assembly_, Checkpoint(resolve_checkpoint(from)));
    if (place_.step >= config_.train.steps) {
      throw_user_error(
          "{} is at step {} already and train.steps is {}: nothing is left to train; raise train.steps", from,
          place_.step, config_.train.steps);
    }
    prepare_run_folder(config_.output.dir, /*keep=*/true);
    for (const std::string& path : set_aside_checkpoints_after(config_.checkpoint.dir, place_.step)) {
      notice("a later checkpoint of the earlier run is now {}", path);
    }
    notice("going on from {} at step {}", from, place_.step + 1);
  }

  void start_new() {
    const std::string aside = prepare_run_folder(config_.output.dir, /*keep=*/false);
    if (!aside.empty()) {
      notice("{} held another run, which is now in {} (--resume goes on with a run)", config_.output.dir,
             aside);
    }
    if (const auto newest = newest_checkpoint(config_.checkpoint.dir)) {
      throw_user_error(
          "checkpoint.dir = \"{}\" holds checkpoints of another run (newest: {}); pass --resume to go on from "
          "there, "
          "or choose another checkpoint.dir",
          config_.checkpoint.dir, newest->path);
    }
  }

  void step(Progress& progress) {
    const double begin = now();
    const std::int64_t number = place_.step + 1;
    const double lr = learning_rate(assembly_.schedule, number);
    const Batch batch = data_.train().batch(place_.position, config_.train.global_batch);
    StepResult result;
    try {
      result =
          train_step(assembly_, {.tokens = batch.tokens, .targets = batch.targets}, lr, place_.updates + 1);
    } catch (const RunError& error) {
      throw_run_error("step {}: {}", number, error.what());
    }
    place_.step = number;
    place_.position += config_.train.global_batch;
    place_.updates += result.skipped ? 0 : 1;
    tokens_ += batch.count * batch.seq_len;
    last_loss_ = result.loss;

    StepMetrics metrics;
    metrics.step = number;
    metrics.loss = result.loss;
    metrics.grad_norm = result.grad_norm;
    metrics.lr = lr;
    metrics.tokens = place_.position * config_.data.seq_len;
    metrics.step_seconds = now() - begin;
    metrics.tokens_per_second = static_cast<double>(batch.count * batch.seq_len) / metrics.step_seconds;
    metrics.mfu = utilization(metrics.tokens_per_second);
    metrics.skipped = result.skipped;
    metrics_->append(metrics);
    progress.step(metrics);
  }

  // MFU, or nothing where no peak is known.
  std::optional<double> utilization(double tokens_per_second) {
    if (peak_tflops_ <= 0.0) return std::nullopt;
    const double achieved = tokens_per_second * 1e-12 *
                            static_cast<double>(model_flops_per_token(config_.model, config_.data.seq_len));
    // A step faster than the peak says that the peak was measured while the machine was busy.
    if (achieved > peak_tflops_ && config_.machine.peak_tflops < 0.0 &&
        peak_measurements_ < kPeakMeasurements) {
      ++peak_measurements_;
      peak_tflops_ =
          std::max(peak_tflops_, quick_peak_tflops(config_.precision.compute, assembly_.stream.threads()));
    }
    return achieved > peak_tflops_ ? std::nullopt : std::optional(achieved / peak_tflops_);
  }

  void evaluate_and_record(Progress& progress) {
    if (!data_.valid()) return;
    last_evaluation_ = evaluate(
        *data_.valid(), tokenizer_, config_.train.micro_batch, config_.train.eval_batches,
        [&](const GlobalBatch& batch) { return eval_step(assembly_, batch); }, options_.stop_requested);
    EvalMetrics metrics{.step = place_.step, .loss = last_evaluation_->nats_per_token, .bits_per_byte = {}};
    if (std::isfinite(last_evaluation_->bits_per_byte)) metrics.bits_per_byte = last_evaluation_->bits_per_byte;
    metrics_->append(metrics);
    progress.eval(metrics);
  }

  void save() {
    metrics_->sync();
    writer_->write(checkpoint_contents(assembly_, place_));
  }

  void write_summary() const {
    const double seconds = now() - begin_;
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    nlohmann::json summary = {
        {"steps", place_.step},
        {"updates", place_.updates},
        {"parameters", assembly_.params.count()},
        {"loss", last_loss_},
        {"tokens", place_.position * config_.data.seq_len},
        {"seconds", seconds},
        {"tokens_per_second", static_cast<double>(tokens_) / seconds},
        {"threads", assembly_.stream.threads()},
        {"peak_tflops", peak_tflops_ > 0.0 ? nlohmann::json(peak_tflops_) : nullptr},
        {"flop_convention", kFlopConvention},
        {"memory", memory_to_json(assembly_.peak_memory())},
        {"peak_resident_bytes", static_cast<std::int64_t>(usage.ru_maxrss) * 1024},
        {"checkpoint", newest_checkpoint(config_.checkpoint.dir)->path},
    };
    if (last_evaluation_) {
      summary["eval_loss"] = last_evaluation_->nats_per_token;
      if (std::isfinite(last_evaluation_->bits_per_byte)) {
        summary["eval_bits_per_byte"] = last_evaluation_->bits_per_byte;
      }
    }
    write_whole_file((fs::path(config_.output.dir) / "summary.json").string(), summary.dump(2) + "\n");
  }

  void report(bool interrupted) const {
    if (interrupted) {
      fmt::print("stopped after step {} of {}, saved in {}; to go on: meshtrain train {} --resume\n",
                 place_.step, config_.train.steps, newest_checkpoint(config_.checkpoint.dir)->path,
                 config_.output.dir);
      return;
    }
    fmt::print("{} steps, loss {:.4f}; run folder {}\n", place_.step, last_loss_, config_.output.dir);
  }

  const Config& config_;
  const Tokenizer& tokenizer_;
  const RunOptions& options_;
  double begin_ = now();
  RunData data_;
  std::unique_ptr<Device> device_;
  Assembly assembly_;
  RunPosition place_;
  std::optional<CheckpointWriter> writer_;
  std::optional<MetricsFile> metrics_;
  bool resumed_ = false;
  static constexpr int kPeakMeasurements = 5;
  double peak_tflops_ = 0.0;
  int peak_measurements_ = 0;
  std::int64_t tokens_ = 0;
  double last_loss_ = 0.0;
  std::optional<Evaluation> last_evaluation_;
};

}  // namespace

void run_training(const Config& unresolved, const RunOptions& options) {
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(unresolved.data.tokenizer);
  const Config config = with_vocabulary(unresolved, *tokenizer);
  Run(config, *tokenizer, options).loop();
}

}  // namespace meshtrain
