// What a person sees of a run: on a terminal one line that is rewritten, and now and then left standing; in a
// log a plain line now and then.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "telemetry/metrics.h"

namespace meshtrain {

using ProgressClock = std::chrono::steady_clock;

struct ProgressOptions {
  std::int64_t total_steps = 0;
  bool terminal = false;
  // Terminal: columns, which the line never exceeds; asked for each line, since windows change.
  std::function<int()> width = [] { return 80; };
  double seconds_between = 0.0;  // a line is written at most this often; the first and last step always are
  double seconds_kept = 30.0;    // terminal: the first and last line stay, and one in between this often
  std::function<ProgressClock::time_point()> now = [] { return ProgressClock::now(); };
};

// For `out` as it is: a terminal of some width (rewritten ten times a second), or a file or pipe (a line in ten
// seconds).
ProgressOptions progress_options_for(std::FILE* out);

// Writes to `out`, which must outlive it. Used by one thread. A failing write is ignored: a closed terminal
// is no reason to end a run.
class Progress {
 public:
  Progress(std::FILE* out, ProgressOptions options);
  ~Progress() { finish(); }  // what is printed next, an error maybe, begins a line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const StepMetrics& metrics);
  // Lines that stay.
  void eval(const EvalMetrics& metrics);
  void message(std::string_view text);
  // Ends the line that was being rewritten.
  void finish();

 private:
  void keep_line(std::string_view text);
  double seconds_left(const StepMetrics& metrics);

  std::FILE* out_;
  ProgressOptions options_;
  bool line_open_ = false;  // a rewritten line stands on the terminal
  std::int64_t steps_seen_ = 0;
  double mean_step_seconds_ = 0.0;  // recent steps weigh most
  ProgressClock::time_point last_line_;
  ProgressClock::time_point last_kept_;
};

// "step 12/200  loss 2.3457  norm 0.81  lr 3.00e-04  12.3k tokens/s  MFU 41.2%  2m10s left", without MFU where
// no peak is known. Of what takes more columns than `width`, the learning rate, the norm, MFU, the rate and the
// time left are omitted, in this order, until it fits; 0: no limit.
std::string progress_text(const StepMetrics& metrics, std::int64_t total_steps, double seconds_left,
                          int width = 0);

}  // namespace meshtrain
