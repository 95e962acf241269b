// What a run leaves behind and says: the run folder, metrics, checkpoints, progress. Belongs to the rank that
// leads; the others have none.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/folder_lock.h"
#include "telemetry/metrics.h"
#include "telemetry/progress.h"
#include "train/config.h"
#include "train/run_banner.h"
#include "train/run_summary.h"

namespace meshtrain {

// Where a run that goes on begins.
struct RunStart {
  std::string from;                    // a checkpoint; empty: at step 1
  std::int64_t step = 0;               // done
  bool same_run = false;               // the checkpoint is one of this run's folder
  std::vector<std::string> damaged{};  // later checkpoints that were passed over
};

// Whether `from` is a checkpoint of the run that `config` describes, not one that begins another.
bool is_of_same_run(const Config& config, const std::string& from);

// What is said of a checkpoint that could not be removed ("PATH: REASON"): it is in nobody's way.
std::string unremoved_text(const std::string& path_and_reason);

class RunOutput {
 public:
  // Nobody else trains in the run's folders from here on. Throws UserError where somebody does.
  explicit RunOutput(const Config& config) : config_(config) { lock_folders(); }

  // Whether the evaluation after `step` was recorded by the run that goes on.
  bool has_recorded_evaluation(std::int64_t step) const;

  // Whether summary.json tells of a run that ended after `step`.
  bool has_summary_of(std::int64_t step) const;

  // Where a run was to go on and no checkpoint was found: throws UserError when one may just not be seen from
  // here.
  void check_may_start_afresh() const;

  // Makes or keeps the run folder, and moves what another run left out of the way, unless what it holds is
  // this run's own: `own_folder`. Throws UserError.
  void open(const RunStart& start, bool own_folder);
  // Before the first step, once the folder is open: says what is trained, on what and where.
  void begin(const RunFacts& facts);

  // Each step, before anything is written: throws RunError where the run's folders are not where they were.
  void check_folders() const;

  void record(const StepMetrics& metrics);
  void record(const EvalMetrics& metrics);
  // A line on standard error.
  void say(const std::string& text);
  // A checkpoint vouches for the metrics up to its step: they are on the disk first.
  void before_save() { metrics_->sync(); }
  void saved(std::int64_t step);
  // The run is back at the checkpoint `from` (empty: at the initial weights), which has done metrics.step
  // steps.
  void roll_back(const RollbackMetrics& metrics, const std::string& from);
  void finish_progress() { progress_.reset(); }
  void write(const RunSummary& summary) const;

  // The newest checkpoint of this run, or the one that it went on from.
  const std::string& checkpoint() const { return checkpoint_; }

 private:
  void lock_folders();
  // Null: nobody asked for it yet.
  const FolderLock* lock_of(const std::string& folder) const;
  void keep_folder(const RunStart& start);
  void make_folder(bool own);
  void make_checkpoint_directory() const;
  std::string in_folder(const char* name) const;

  const Config& config_;
  std::list<FolderLock> locks_;
  struct Folder {
    const char* key;
    std::string path;
    const FolderLock* lock;
  };
  std::vector<Folder> folders_;  // that the run writes to
  bool resumed_ = false;
  std::int64_t first_step_ = 0;
  std::string checkpoint_;
  std::optional<MetricsFile> metrics_;
  std::optional<Progress> progress_;
};

}  // namespace meshtrain
