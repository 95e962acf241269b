#include "train/run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "data/tokenizer.h"
#include "model/flops.h"
#include "telemetry/metrics.h"
#include "telemetry/peak.h"
#include "telemetry/progress.h"
#include "train/assembly.h"
#include "train/checkpointing.h"
#include "train/evaluation.h"
#include "train/run_data.h"
#include "train/run_folder.h"
#include "train/run_summary.h"
#include "train/step.h"
#include "train/vocabulary.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

// Whether `inner` lies in the folder `outer`, or is it.
bool lies_in(const std::string& inner, const std::string& outer) {
  const auto whole = [](const std::string& path) { return fs::absolute(path + "/").lexically_normal(); };
  const fs::path way = whole(inner).lexically_relative(whole(outer));
  return !way.empty() && *way.begin() != "..";
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
    write_whole_file((fs::path(config_.output.dir) / "config.toml").string(), to_toml(config_));
    metrics_.emplace(metrics_path(), resumed_ ? std::optional(place_.step) : std::nullopt);
    peak_tflops_ = config_.machine.peak_tflops;
    if (peak_tflops_ < 0.0)
      peak_tflops_ = quick_peak_tflops(config_.precision.compute, assembly_.stream.threads());
  }

  void run() {
    try {
      loop();
      writer_->flush();
      write_summary();
    } catch (const RunError& error) {
      std::string_view what = error.what();
      if (what.ends_with('.')) what.remove_suffix(1);
      throw_run_error("{}. {}", what, how_to_go_on());
    }
    report();
  }

 private:
  void loop() {
    ProgressOptions progress_options = progress_options_for(stderr);
    progress_options.total_steps = config_.train.steps;
    if (peak_tflops_ > 0.0) {
      progress_options.mfu_convention = fmt::format("{}, of {:.3f} TFLOP/s in {}", kFlopConvention,
                                                    peak_tflops_, name_of(config_.precision.compute));
    }
    Progress progress(stderr, progress_options);
    if (evaluation_owed_) evaluate_and_record(progress);
    bool stopped = options_.stop_requested();
    while (place_.step < config_.train.steps && !stopped) {
      step(progress);
      // Before the evaluation, which may take long.
      bool saved = place_.step == config_.train.steps ||
                   (config_.checkpoint.every > 0 && place_.step % config_.checkpoint.every == 0);
      if (saved) save();
      evaluation_owed_ = evaluation_due();
      if (evaluation_owed_ && !options_.stop_requested()) evaluate_and_record(progress);
      stopped = options_.stop_requested() || place_.step == options_.stop_at_step;
      if (stopped && !saved) save();
    }
    progress.finish();
  }

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
      make_run_folder();
    } else {
      go_on(resolve_checkpoint(from));
    }
  }

  void go_on(const std::string& from) {
    resumed_ = true;
    checkpoint_ = from;
    place_ = restore(assembly_, Checkpoint(from));
    // A checkpoint from elsewhere begins a run of its own.
    const bool same_run = lies_in(from, config_.checkpoint.dir);
    evaluation_owed_ = evaluation_due() && !(same_run && has_evaluation(metrics_path(), place_.step));
    if (place_.step >= config_.train.steps && !evaluation_owed_) {
      throw_user_error(
          "{} is at step {} already and train.steps is {}: nothing is left to train; raise train.steps", from,
          place_.step, config_.train.steps);
    }
    if (options_.stop_at_step > 0 && options_.stop_at_step <= place_.step) {
      throw_user_error("--stop-at-step {}: {} is at step {} already; name a later step", options_.stop_at_step,
                       from, place_.step);
    }
    if (same_run) {
      keep_run_folder();
    } else {
      make_run_folder();
    }
    if (place_.step < config_.train.steps) {
      notice("going on from {} at step {}", from, place_.step + 1);
    } else {
      notice("going on from {} with the evaluation after its last step", from);
    }
  }

  void keep_run_folder() {
    prepare_run_folder(config_.output.dir, /*keep=*/true);
    open_writer();
    for (const std::string& path : set_aside_checkpoints_after(config_.checkpoint.dir, place_.step)) {
      notice("a later checkpoint of the earlier run is now {}", path);
    }
  }

  void make_run_folder() {
    // What would refuse this run is found before an earlier one is moved out of its way.
    const bool moves_with_run = lies_in(config_.checkpoint.dir, config_.output.dir);
    if (!moves_with_run) open_new_writer();
    const std::string aside = prepare_run_folder(config_.output.dir, /*keep=*/false);
    if (!aside.empty()) {
      notice("{} held another run, which is now in {} (--resume goes on with a run)", config_.output.dir,
             aside);
    }
    if (moves_with_run) open_new_writer();
  }

  void open_new_writer() {
    if (const auto newest = newest_checkpoint(config_.checkpoint.dir)) {
      throw_user_error(
          "checkpoint.dir = \"{}\" holds checkpoints of another run (newest: {}); pass --resume to go on from "
          "there, or choose another checkpoint.dir",
          config_.checkpoint.dir, newest->path);
    }
    open_writer();
  }

  void open_writer() {
    writer_.emplace(config_.checkpoint.dir, config_.checkpoint.keep, config_.checkpoint.async);
  }

  std::string metrics_path() const { return (fs::path(config_.output.dir) / "metrics.jsonl").string(); }

  void step(Progress& progress) {
    const Stopwatch watch;
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
    metrics.step_seconds = watch.seconds();
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

  // Whether the step that was done last is one to evaluate after.
  bool evaluation_due() const {
    if (data_.valid() == nullptr) return false;
    return place_.step == config_.train.steps ||
           (config_.train.eval_every > 0 && place_.step % config_.train.eval_every == 0);
  }

  // One that is interrupted is not recorded and stays owed: a resumed run begins with it.
  void evaluate_and_record(Progress& progress) {
    const Evaluation evaluation = evaluate(
        *data_.valid(), tokenizer_, config_.train.micro_batch, config_.train.eval_batches,
        [&](const GlobalBatch& batch) { return eval_step(assembly_, batch); }, options_.stop_requested);
    if (options_.stop_requested()) return;
    evaluation_owed_ = false;
    last_evaluation_ = evaluation;
    EvalMetrics metrics{.step = place_.step, .loss = evaluation.nats_per_token, .bits_per_byte = {}};
    if (std::isfinite(evaluation.bits_per_byte)) metrics.bits_per_byte = evaluation.bits_per_byte;
    metrics_->append(metrics);
    progress.eval(metrics);
  }

  void save() {
    metrics_->sync();
    writer_->write(checkpoint_contents(assembly_, place_));
    checkpoint_ = (fs::path(config_.checkpoint.dir) / checkpoint_name(place_.step)).string();
  }

  void write_summary() const {
    const double seconds = watch_.seconds();
    const RunSummary summary = {.steps = place_.step,
                                .updates = place_.updates,
                                .parameters = assembly_.params.count(),
                                .loss = last_loss_,
                                .tokens = place_.position * config_.data.seq_len,
                                .seconds = seconds,
                                .tokens_per_second = static_cast<double>(tokens_) / seconds,
                                .threads = assembly_.stream.threads(),
                                .peak_tflops = peak_tflops_,
                                .memory = assembly_.peak_memory(),
                                .checkpoint = checkpoint_,
                                .evaluation = last_evaluation_};
    write_whole_file((fs::path(config_.output.dir) / "summary.json").string(), to_json_text(summary));
  }

  // For the end of an error message.
  std::string how_to_go_on() {
    try {
      writer_->flush();
    } catch (const RunError&) {  // what went wrong first is what is reported
    }
    const std::optional<CheckpointPlace> newest = newest_checkpoint(config_.checkpoint.dir);
    if (!newest) return "No checkpoint was saved before";
    return fmt::format("The newest checkpoint is {}; to go on from there: meshtrain train {} --resume",
                       newest->path, config_.output.dir);
  }

  void report() const {
    if (place_.step < config_.train.steps || evaluation_owed_) {
      fmt::print("stopped after step {} of {}, saved in {}; to go on: meshtrain train {} --resume\n",
                 place_.step, config_.train.steps, checkpoint_, config_.output.dir);
      return;
    }
    fmt::print("{} steps, loss {}; run folder {}\n", place_.step,
               last_loss_ ? fmt::format("{:.4f}", *last_loss_) : "n/a", config_.output.dir);
  }

  const Config& config_;
  const Tokenizer& tokenizer_;
  const RunOptions& options_;
  Stopwatch watch_;
  RunData data_;
  std::unique_ptr<Device> device_;
  Assembly assembly_;
  RunPosition place_;
  std::optional<CheckpointWriter> writer_;
  std::optional<MetricsFile> metrics_;
  bool resumed_ = false;
  std::string checkpoint_;        // the newest of this run, or the one that it went on from
  bool evaluation_owed_ = false;  // due after the step done last, and not recorded yet
  static constexpr int kPeakMeasurements = 5;
  double peak_tflops_ = 0.0;
  int peak_measurements_ = 0;
  std::int64_t tokens_ = 0;
  std::optional<double> last_loss_;
  std::optional<Evaluation> last_evaluation_;
};

}  // namespace

void run_training(const Config& unresolved, const RunOptions& options) {
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(unresolved.data.tokenizer);
  const Config config = with_vocabulary(unresolved, *tokenizer);
  Run(config, *tokenizer, options).run();
}

}  // namespace meshtrain
