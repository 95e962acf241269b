#include "train/run_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_folder.h"
#include "train/run_folder.h"

namespace meshtrain {
namespace {

namespace fs = std::filesystem;

// Seconds that a run that was killed may take to be gone.
constexpr double kPatience = 10.0;

}  // namespace

bool is_of_same_run(const Config& config, const std::string& from) {
  return lies_in(from, config.checkpoint.dir);
}

std::string unremoved_text(const std::string& path_and_reason) {
  return fmt::format("an old checkpoint cannot be removed: {}; remove it yourself", path_and_reason);
}

std::string RunOutput::in_folder(const char* name) const {
  return (fs::path(config_.output.dir) / name).string();
}

bool RunOutput::has_recorded_evaluation(std::int64_t step) const {
  return has_evaluation(in_folder("metrics.jsonl"), step);
}

bool RunOutput::has_summary_of(std::int64_t step) const {
  std::ifstream file(in_folder("summary.json"));
  const nlohmann::json summary = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  return summary.is_object() && summary.value("steps", nlohmann::json()) == step;
}

void RunOutput::check_may_start_afresh() const {
  std::error_code ignored;
  const std::string& checkpoints = config_.checkpoint.dir;
  // A run makes its folder of checkpoints before all else.
  if (!holds_run(config_.output.dir) || fs::is_directory(checkpoints, ignored)) return;
  if (lies_in(checkpoints, config_.output.dir)) return;
  throw_user_error(
      "output.dir = \"{}\" holds a run, but checkpoint.dir = \"{}\" is not there, so that there is nothing to "
      "go on from (a path that does not begin with / counts from the working folder). Set checkpoint.dir, name "
      "a "
      "checkpoint with --resume-from, or leave --resume out to start at step 1.",
      config_.output.dir, checkpoints);
}

void RunOutput::open(const RunStart& start, bool own_folder) {
  resumed_ = !start.from.empty();
  first_step_ = start.step;
  checkpoint_ = start.from;
  if (start.same_run) {
    keep_folder(start);
  } else {
    make_folder(own_folder);
  }
  lock_folders();  // those that were made just now
  for (const auto& [key, folder] :
       {std::pair("output.dir", config_.output.dir), std::pair("checkpoint.dir", config_.checkpoint.dir)}) {
    if (const FolderLock* lock = lock_of(folder)) folders_.push_back({key, folder, lock});
  }
}

void RunOutput::check_folders() const {
  for (const Folder& folder : folders_) {
    if (folder.lock->is_of(folder.path)) continue;
    const std::string now = folder.lock->current_name();
    if (now.empty()) {
      throw_run_error("{} = \"{}\" was removed while the run trained in it, so that nothing can be saved",
                      folder.key, folder.path);
    }
    throw_run_error(
        "{} = \"{}\" was renamed to {} while the run trained in it. Rename it back and resume, or resume where "
        "it is "
        "now (for an output.dir: `meshtrain train {} --resume`)",
        folder.key, folder.path, now, now);
  }
}

const FolderLock* RunOutput::lock_of(const std::string& folder) const {
  const auto lock =
      std::find_if(locks_.begin(), locks_.end(), [&](const FolderLock& each) { return each.is_of(folder); });
  return lock == locks_.end() ? nullptr : &*lock;
}

// The other ranks wait meanwhile.
void RunOutput::lock_folders() {
  const std::chrono::duration<double> patience(std::min(kPatience, config_.mesh.deadline / 2.0));
  for (const auto& [key, folder] :
       {std::pair("output.dir", config_.output.dir), std::pair("checkpoint.dir", config_.checkpoint.dir)}) {
    if (lock_of(folder) != nullptr) continue;
    if (!locks_.emplace_back(folder, patience).is_taken()) continue;
    throw_user_error(
        "{} = \"{}\" is in use: another run trains there. Wait until it has ended, or stop it; or choose "
        "another {}",
        key, folder, key);
  }
}

void RunOutput::keep_folder(const RunStart& start) {
  prepare_run_folder(config_.output.dir, /*keep=*/true);
  prepare_checkpoint_directory(config_.checkpoint.dir);
  for (const std::string& path : start.damaged) {
    notice("the damaged checkpoint is now {}, until a whole one takes its place",
           set_aside_checkpoint(path, kDamaged));
  }
  for (const std::string& path : set_aside_checkpoints_after(config_.checkpoint.dir, start.step)) {
    notice("a later checkpoint of the earlier run is now {}", path);
  }
  // What was not removed to the end, or not written to the end, when the run was cut off.
  for (const std::string& path : prune_checkpoints(config_.checkpoint.dir, config_.checkpoint.keep)) {
    notice("{}", unremoved_text(path));
  }
}

void RunOutput::make_folder(bool own) {
  // What would refuse this run is found before an earlier one is moved out of its way.
  const bool moves_with_run = lies_in(config_.checkpoint.dir, config_.output.dir);
  if (!moves_with_run) make_checkpoint_directory();
  // Only who has the lock moves it aside.
  prepare_run_folder(config_.output.dir, /*keep=*/true);
  lock_folders();
  const std::string aside = prepare_run_folder(config_.output.dir, /*keep=*/own);
  lock_folders();
  if (!aside.empty()) {
    notice("{} held another run, which is now in {} (--resume continues a run)", config_.output.dir, aside);
  }
  if (moves_with_run) make_checkpoint_directory();
}

void RunOutput::make_checkpoint_directory() const {
  if (const auto newest = newest_checkpoint(config_.checkpoint.dir)) {
    throw_user_error(
        "checkpoint.dir = \"{}\" holds checkpoints of another run (newest: {}); pass --resume to go on from "
        "there, or choose another checkpoint.dir",
        config_.checkpoint.dir, newest->path);
  }
  prepare_checkpoint_directory(config_.checkpoint.dir);
}

void RunOutput::begin(const RunFacts& facts) {
  write_whole_file(in_folder("config.toml"), to_toml(config_));
  metrics_.emplace(in_folder("metrics.jsonl"), resumed_ ? std::optional(first_step_) : std::nullopt);
  ProgressOptions options = progress_options_for(stderr);
  options.total_steps = config_.train.steps;
  progress_.emplace(stderr, options);
  for (const std::string& line : run_banner(facts)) progress_->message(line);
}

void RunOutput::say(const std::string& text) {
  if (progress_) {
    progress_->message(std::string(kMessagePrefix) + text);
  } else {
    notice("{}", text);
  }
}

void RunOutput::record(const StepMetrics& metrics) {
  check_folders();
  metrics_->append(metrics);
  progress_->step(metrics);
}

void RunOutput::record(const EvalMetrics& metrics) {
  metrics_->append(metrics);
  progress_->eval(metrics);
}

void RunOutput::saved(std::int64_t step) {
  checkpoint_ = (fs::path(config_.checkpoint.dir) / checkpoint_name(step)).string();
}

void RunOutput::roll_back(const RollbackMetrics& metrics, const std::string& from) {
  checkpoint_ = from;
  metrics_->roll_back(metrics);
  std::string samples;
  for (const auto& [first, count] : metrics.left_out) {
    samples += fmt::format("{}{} to {}", samples.empty() ? "" : " and ", first, first + count - 1);
  }
  progress_->finish();
  notice("step {}: {} (loss {:.6g}, gradient norm {:.6g}{}): back to {}, from there on without samples {}",
         metrics.bad_step, metrics.reason, metrics.loss, metrics.grad_norm,
         metrics.threshold ? fmt::format(", threshold {:.6g}", *metrics.threshold) : "",
         checkpoint_.empty() ? "the initial weights" : checkpoint_, samples);
}

void RunOutput::write(const RunSummary& summary) const {
  write_whole_file(in_folder("summary.json"), to_json_text(summary));
}

}  // namespace meshtrain
