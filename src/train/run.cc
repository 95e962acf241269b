#include "train/run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "base/terminal.h"
#include "base/trace.h"
#include "checkpoint/checkpoint_writer.h"
#include "comm/agreement.h"
#include "comm/naming_step.h"
#include "data/tokenizer.h"
#include "model/flops.h"
#include "telemetry/units.h"
#include "train/assembly.h"
#include "train/checkpoint_rhythm.h"
#include "train/checkpointing.h"
#include "train/evaluation.h"
#include "train/memory_plan.h"
#include "train/resume.h"
#include "train/rollback.h"
#include "train/run_data.h"
#include "train/run_output.h"
#include "train/run_peak.h"
#include "train/run_report.h"
#include "train/run_summary.h"
#include "train/run_trace.h"
#include "train/saving_phases.h"
#include "train/step.h"
#include "train/vocabulary.h"

namespace meshtrain {
namespace {

// One rank's part of a run. All ranks go through it together; what is written is up to the one that leads.
class Run {
 public:
  // `trace` outlives it; null: none.
  Run(const Config& config, const Tokenizer& tokenizer, const RunOptions& options, World& world,
      RunTrace* trace)
      : config_(config),
        tokenizer_(tokenizer),
        options_(options),
        world_(world),
        trace_(trace),
        data_(config, tokenizer),
        device_(world.make_device()),
        assembly_(config, *device_, world, plan_memory(config, *device_, world)),
        control_(*assembly_.groups.control),
        rhythm_(config),
        peak_(config, control_, assembly_.stream.threads()) {
    if (assembly_.leads()) output_.emplace(config);
    const RunStart start = begin();
    if (output_) {
      output_->open(start, options_.restarted);
      output_->begin(facts());
    }
    writer_.emplace(CheckpointWriter::Options{.directory = config.checkpoint.dir,
                                              .keep = config.checkpoint.keep,
                                              .async = config.checkpoint.async,
                                              .copy = assembly_.checkpoint_copy(),
                                              .hook = phases_of_saving(options.at_phase)},
                    assembly_.groups.checkpoint.get());
    if (trace_ != nullptr) trace_->begin(assembly_);
  }

  RunOutcome run() {
    try {
      loop();
      writer_->flush();
      say_unremoved();
      // No rank has succeeded before all are here: one that hangs is missed, and the run is not said to be
      // over.
      naming_step(place_.step, [&] {
        control_.barrier();
        write_summary();
      });
      if (trace_ != nullptr) trace_->finish(assembly_);
    } catch (const RunError&) {
      finish_saving();
      throw;
    }
    const RunEnd end = {
        .config = config_,
        .start = start_,
        .place = place_,
        .evaluation_owed = evaluation_owed_,
        .loss_scale = assembly_.loss_scaler ? std::optional(assembly_.loss_scaler->scale()) : std::nullopt,
        .loss = last_loss_};
    check_something_was_trained(end);
    if (output_) print_line(stdout, last_line(end, output_->checkpoint()));
    const bool is_over = place_.step >= config_.train.steps && !evaluation_owed_;
    return is_over || is_last_wanted() ? RunOutcome::kDone : RunOutcome::kInterrupted;
  }

 private:
  void loop() {
    if (evaluation_owed_ && !is_last_wanted()) evaluate_and_record();
    bool stopped = any_rank(control_, options_.stop_requested() || is_last_wanted());
    rhythm_.begin(place_.step);
    while (place_.step < config_.train.steps && !stopped) {
      const StepEnd end = step();
      if (end == StepEnd::kRolledBack) continue;
      stopped = end == StepEnd::kStop || is_last_wanted();
      // Before the evaluation, which may take long.
      const bool due = place_.step == config_.train.steps || rhythm_.due(place_.step);
      if (due) save();
      evaluation_owed_ = evaluation_due();
      if (evaluation_owed_ && !stopped) {
        evaluate_and_record();
        stopped = any_rank(control_, options_.stop_requested());
      }
      if (stopped && !due) save();
    }
    if (output_) output_->finish_progress();
  }

  // Initial weights, or those of a checkpoint.
  RunStart begin() {
    const ResumeSource source = source_to_go_on_from();
    RunStart start;
    if (source.checkpoint) start = start_from(source);
    start_ = place_ = load_start(assembly_, source.checkpoint.get());
    return start;
  }

  // Sets the place, and throws UserError where nothing is left to do.
  RunStart start_from(const ResumeSource& source) {
    place_ = position_of(*source.checkpoint);
    // A checkpoint from elsewhere begins a run of its own.
    const std::string& from = source.checkpoint->path();
    const RunStart start = {.from = from,
                            .step = place_.step,
                            .same_run = is_of_same_run(config_, from),
                            .damaged = source.damaged};
    const bool recorded = output_ && start.same_run && output_->has_recorded_evaluation(place_.step);
    evaluation_owed_ = any_rank(control_, output_ && evaluation_due() && !recorded);
    const bool cut_off = output_ && start.same_run && !output_->has_summary_of(place_.step);
    check_something_is_left(from, any_rank(control_, cut_off));
    if (output_) {
      if (is_last_wanted() || (place_.step >= config_.train.steps && !evaluation_owed_)) {
        notice("{} is the last checkpoint of this run already", from);
      } else if (place_.step < config_.train.steps) {
        notice("resuming from {} at step {}", from, place_.step + 1);
      } else {
        notice("resuming from {} with the evaluation after its last step", from);
      }
      const std::string other = place_.position > 0 ? other_samples(config_, *source.checkpoint) : "";
      if (!other.empty()) notice("{}", other);
    }
    return start;
  }

  ResumeSource source_to_go_on_from() {
    if (!options_.resume_from.empty()) return whole_checkpoint(options_.resume_from, control_);
    if (!options_.resume) return {};
    ResumeSource source = newest_whole_checkpoint(config_.checkpoint.dir, control_);
    if (!source.checkpoint && output_) {
      output_->check_may_start_afresh();
      notice("no checkpoint in {}: starting at step 1", config_.checkpoint.dir);
    }
    return source;
  }

  bool is_last_wanted() const { return options_.stop_at_step > 0 && place_.step >= options_.stop_at_step; }

  // `cut_off`: the run did not get to its end after this checkpoint.
  void check_something_is_left(const std::string& from, bool cut_off) const {
    if (options_.restarted) return;
    if (place_.step >= config_.train.steps && !evaluation_owed_ && !cut_off) {
      throw_user_error(
          "{} is at step {} already and train.steps is {}: nothing is left to train; raise train.steps", from,
          place_.step, config_.train.steps);
    }
    if (is_last_wanted() && !(cut_off && options_.stop_at_step == place_.step)) {
      throw_user_error("--stop-at-step {}: {} is at step {} already; name a later step", options_.stop_at_step,
                       from, place_.step);
    }
  }

  enum class StepEnd : std::uint8_t {
    kDone,
    kStop,        // done, and a rank wishes to stop
    kRolledBack,  // a bad step: the run is where its newest checkpoint is
  };

  StepEnd step() {
    writer_->check_in_flight();
    const Stopwatch watch;
    const std::int64_t number = place_.step + 1;
    const double lr = learning_rate(assembly_.schedule, number);
    const TraceSpan span = traced("step {}", number);
    StepResult result;
    std::optional<BadStep> bad;
    try {
      const Batch batch = rank_batch(data_.train(), assembly_, place_.position, place_.bad_steps.left_out);
      result = train_step(assembly_, {.tokens = batch.tokens, .targets = batch.targets}, lr, place_.updates + 1,
                          {.wishes_to_stop = options_.stop_requested,
                           .norms = place_.bad_steps.norms,
                           .at_phase = phases_of(number)});
    } catch (const BadStepError& error) {
      if (!rolls_back()) {
        throw AgreedError(fmt::format("step {}: {}{}", number, error.what(), rollbacks_before()));
      }
      bad = error.bad();
    } catch (const CommError& error) {
      throw CommError(fmt::format("step {}: {}", number, error.what()));
    } catch (const RunError& error) {
      throw_run_error("step {}: {}", number, error.what());
    }
    if (bad) {
      roll_back_from(*bad);
      return StepEnd::kRolledBack;
    }
    const std::int64_t tokens = config_.train.global_batch * config_.data.seq_len;
    place_.step = number;
    place_.position += config_.train.global_batch;
    place_.updates += result.skipped ? 0 : 1;
    if (!result.skipped) remember_norm(config_.train, result.grad_norm, place_.bad_steps);
    tokens_ += tokens;
    last_loss_ = result.loss;
    if (output_) {
      StepMetrics metrics;
      metrics.step = number;
      metrics.loss = result.loss;
      metrics.grad_norm = result.grad_norm;
      metrics.lr = lr;
      metrics.tokens = place_.position * config_.data.seq_len;
      metrics.step_seconds = watch.seconds();
      metrics.tokens_per_second = static_cast<double>(tokens) / metrics.step_seconds;
      metrics.mfu = utilization(metrics.tokens_per_second);
      metrics.skipped = result.skipped;
      metrics.loss_scale = result.loss_scale;
      output_->record(metrics);
    }
    if (!result.stop) naming_step(number, [&] { measure_peak_if_worthwhile(watch.seconds()); });
    return result.stop ? StepEnd::kStop : StepEnd::kDone;
  }

  bool rolls_back() const {
    return config_.train.on_bad_step == "rollback" && place_.bad_steps.rollbacks < config_.train.max_rollbacks;
  }

  // For the message of a bad step that is not rolled back.
  std::string rollbacks_before() const {
    if (config_.train.on_bad_step != "rollback") return "";
    return fmt::format(". The run was rolled back {} before (train.max_rollbacks = {})",
                       format_count(place_.bad_steps.rollbacks, "time"), config_.train.max_rollbacks);
  }

  void roll_back_from(const BadStep& bad) {
    const TraceSpan span = traced("rollback");
    place_ = roll_back(assembly_, *writer_, output_ ? &*output_ : nullptr, place_, bad);
    last_evaluation_.reset();  // perhaps of a step that did not happen; that of the checkpoint is recorded
  }

  std::function<void(std::string_view)> phases_of(std::int64_t step) const {
    if (!options_.at_phase) return {};
    return [this, step](std::string_view phase) { options_.at_phase(phase, step); };
  }

  template <class... Args>
  TraceSpan traced(fmt::format_string<const Args&...> name, const Args&... args) const {
    return {assembly_.stream.trace(), TraceKind::kCompute, name, args...};
  }

  RunFacts facts() const {
    return {.config = config_,
            .data = data_,
            .steps_done = place_.step,
            .position = place_.position,
            .engine = std::string(world_.engine()),
            .threads = assembly_.stream.threads(),
            .bytes = assembly_.planned_memory().total(),
            .peak = peak_.tflops() > 0.0 ? peak_.text() : ""};
  }

  // MFU, or nothing where no peak is known.
  std::optional<double> utilization(double tokens_per_second) {
    return peak_.part(tokens_per_second * 1e-12 *
                      static_cast<double>(model_flops_per_token(config_.model, config_.data.seq_len)));
  }

  // Between steps, once it shows that the run lasts: nobody waits for MFU.
  void measure_peak_if_worthwhile(double step_seconds) {
    const std::int64_t last =
        options_.stop_at_step > 0 ? std::min(options_.stop_at_step, config_.train.steps) : config_.train.steps;
    const double seconds_left = step_seconds * static_cast<double>(last - place_.step);
    const bool measured = peak_.measure_if_worthwhile(seconds_left, [this] { assembly_.settle(); });
    if (measured && output_) {
      output_->say(fmt::format("MFU is relative to the peak measured now, {}", peak_.text()));
    }
  }

  // Whether the step that was done last is one to evaluate after.
  bool evaluation_due() const {
    if (data_.valid() == nullptr) return false;
    return place_.step == config_.train.steps ||
           (config_.train.eval_every > 0 && place_.step % config_.train.eval_every == 0);
  }

  // One that is interrupted is not recorded and stays owed: a resumed run begins with it.
  void evaluate_and_record() {
    const TraceSpan span = traced("evaluation");
    const Evaluation evaluation = naming_step(place_.step, [&] {
      return evaluate(
          {.sampler = *data_.valid(),
           .tokenizer = tokenizer_,
           .micro_batch = config_.train.micro_batch,
           .tokens = config_.train.eval_tokens},
          [&](const HostBatch& batch) { return eval_step(assembly_, batch); }, options_.stop_requested,
          evaluation_ranks(assembly_));
    });
    if (evaluation.interrupted) return;
    evaluation_owed_ = false;
    last_evaluation_ = evaluation;
    if (!output_) return;
    EvalMetrics metrics{.step = place_.step,
                        .loss = evaluation.nats_per_token,
                        .bits_per_byte = {},
                        .tokens = evaluation.tokens};
    if (std::isfinite(evaluation.bits_per_byte)) metrics.bits_per_byte = evaluation.bits_per_byte;
    output_->record(metrics);
  }

  void save() {
    const TraceSpan span = traced("{}", config_.checkpoint.async ? "checkpoint copy" : "checkpoint");
    const Stopwatch watch;
    assembly_.settle();
    if (output_) {
      output_->check_folders();
      output_->before_save();
    }
    writer_->write(checkpoint_contents(assembly_, place_));
    if (output_) output_->saved(place_.step);
    say_unremoved();
    const SaveTimes times = {.stall = watch.seconds(), .writing = writer_->stats().mean_write_seconds()};
    stalled_seconds_ += times.stall;
    const std::string told = rhythm_.saved(place_.step, times, control_);
    if (output_ && !told.empty()) output_->say(told);
  }

  void say_unremoved() {
    for (const std::string& path : writer_->take_unremoved()) output_->say(unremoved_text(path));
  }

  void write_summary() {
    assembly_.settle();
    const std::vector<RankSummary> ranks = summaries_of_ranks(assembly_);
    if (!output_) return;
    output_->check_folders();
    const double seconds = watch_.seconds();
    output_->write({.steps = place_.step,
                    .updates = place_.updates,
                    .rollbacks = place_.bad_steps.rollbacks,
                    .parameters = parameter_count(config_.model),
                    .loss = last_loss_,
                    .tokens = place_.position * config_.data.seq_len,
                    .seconds = seconds,
                    .tokens_per_second = static_cast<double>(tokens_) / seconds,
                    .threads = assembly_.stream.threads(),
                    .peak_tflops = peak_.tflops(),
                    .engine = std::string(world_.engine()),
                    .ranks = ranks,
                    .checkpoint = output_->checkpoint(),
                    .saves = writer_->stats(),
                    .stalled_seconds = stalled_seconds_,
                    .evaluation = last_evaluation_});
  }

  // After an error: a checkpoint that is on its way to the disk still counts.
  void finish_saving() {
    try {
      writer_->flush();
    } catch (const RunError&) {  // what went wrong first is what is reported
    }
  }

  const Config& config_;
  const Tokenizer& tokenizer_;
  const RunOptions& options_;
  World& world_;
  RunTrace* trace_;
  Stopwatch watch_;
  RunData data_;
  std::unique_ptr<Device> device_;
  Assembly assembly_;
  Communicator& control_;
  std::optional<RunOutput> output_;  // of the rank that leads
  std::optional<CheckpointWriter> writer_;
  RunPosition place_;
  RunPosition start_;  // of this process
  CheckpointRhythm rhythm_;
  double stalled_seconds_ = 0.0;  // that training stood still for saves
  bool evaluation_owed_ = false;  // due after the step done last, and not recorded yet
  RunPeak peak_;
  std::int64_t tokens_ = 0;
  std::optional<double> last_loss_;
  std::optional<Evaluation> last_evaluation_;
};

}  // namespace

RunOutcome run_training(const Config& unresolved, const RunOptions& options, World& world) {
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(unresolved.data.tokenizer);
  const Config config = with_vocabulary(for_ranks(unresolved, world.size()), *tokenizer);
  std::optional<RunTrace> trace;
  if (options.trace) trace.emplace((std::filesystem::path(config.output.dir) / "trace.json").string());
  try {
    return Run(config, *tokenizer, options, world, trace ? &*trace : nullptr).run();
  } catch (const RunError&) {
    if (trace) trace->write_own();
    throw;
  }
}

}  // namespace meshtrain
