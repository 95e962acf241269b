// metrics.jsonl: what each step of a run gave, one JSON object a line, for programs to read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace meshtrain {

struct StepMetrics {
  std::int64_t step = 0;           // from 1
  double loss = 0.0;               // mean over the unmasked tokens of the global batch
  double grad_norm = 0.0;          // global, before clipping
  double lr = 0.0;                 // that the step used
  std::int64_t tokens = 0;         // trained on so far, this step's included
  double tokens_per_second = 0.0;  // of this step
  double step_seconds = 0.0;
  std::optional<double> mfu;         // 0 … 1; absent when no peak is known
  bool skipped = false;              // fp16 overflow: nothing was updated
  std::optional<double> loss_scale;  // fp16: of this step; absent, and not in the line, in other precisions
};

struct EvalMetrics {
  std::int64_t step = 0;                // steps done when it was evaluated
  double loss = 0.0;                    // mean over the evaluated tokens
  std::optional<double> bits_per_byte;  // absent when the number of bytes is not known
  std::int64_t tokens = 0;              // evaluated
};

// A run went back to `step`, to leave the data of a bad step out.
struct RollbackMetrics {
  std::int64_t step = 0;      // steps done of the state gone back to
  std::int64_t bad_step = 0;  // its update was not applied
  std::string reason;
  double loss = 0.0;  // of the bad step
  double grad_norm = 0.0;
  std::optional<double> threshold;                              // that a spike's norm exceeds
  std::vector<std::pair<std::int64_t, std::int64_t>> left_out;  // samples from now on: first and count
};

// One line without its end: {"step": 1, "loss": …, "grad_norm": …, "lr": …, "tokens": …, "tokens_per_second":
// …, "step_seconds": …, "mfu": …, "skipped": false} with "loss_scale" in fp16, and {"step": 1, "eval_loss": …,
// "eval_bits_per_byte": …, "eval_tokens": …} and {"step": 1, "rollback": {"bad_step": 3, "reason": "…", "loss":
// …, "grad_norm": …, "threshold": …, "left_out": [[first, count], …]}}. Numbers have the fewest digits that
// read back to the same bits. JSON has no infinity and no NaN: a value that is absent or not finite is null.
std::string to_json_line(const StepMetrics& metrics);
std::string to_json_line(const EvalMetrics& metrics);
std::string to_json_line(const RollbackMetrics& metrics);

// The file, held open for the run. Each line is handed to the operating system at once, so that a kill loses
// none. Errors while writing are RunErrors that name the file. Used by one thread.
class MetricsFile {
 public:
  // A run that goes on from `resumed_step` keeps the lines up to it and cuts the later ones, which it will
  // write again; a new run (nullopt) begins an empty file. The folder must exist. Throws UserError when the
  // file cannot be opened.
  MetricsFile(const std::string& path, std::optional<std::int64_t> resumed_step);
  ~MetricsFile();
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;

  void append(const StepMetrics& metrics);
  void append(const EvalMetrics& metrics);
  // Cuts the lines of later steps than metrics.step, and appends this one.
  void roll_back(const RollbackMetrics& metrics);
  // The lines so far survive a crash of the machine: for use before a checkpoint is committed.
  void sync();

 private:
  void append_line(std::string line);
  void shorten(std::size_t bytes);

  std::string path_;
  int descriptor_ = -1;
};

// Whether the file at `path` holds the evaluation after `step`; false when there is no file.
bool has_evaluation(const std::string& path, std::int64_t step);

// Bytes at the start of `text`, the contents of a metrics file, that a run resumed from `step` keeps: whole
// lines before the first of a later step, or of a rollback to this one, which the checkpoint of `step` does not
// know of: the resumed run comes upon the bad step again. A last line that a crash cut short is not kept.
std::size_t kept_bytes(std::string_view text, std::int64_t step);

}  // namespace meshtrain
