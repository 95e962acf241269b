#include "telemetry/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/number_text.h"
#include "base/terminal.h"
#include "base/text_wrap.h"
#include "telemetry/units.h"

namespace meshtrain {
namespace {

std::string short_count(double value) {
  if (!std::isfinite(value)) return "n/a";
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

void put(std::FILE* out, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
}

}  // namespace

std::string progress_text(const StepMetrics& m, std::int64_t total_steps, double seconds_left, int width) {
  const bool has_mfu = m.mfu && std::isfinite(*m.mfu);
  struct Part {
    std::string text;
    int importance;  // the least important are omitted first
  };
  std::vector<Part> parts = {
      {fmt::format("step {}/{}", m.step, total_steps), 9},
      {fmt::format("loss {:.4f}", without_sign_of_nan(m.loss)), 8},
      {fmt::format("norm {:.2f}", without_sign_of_nan(m.grad_norm)), 2},
      {fmt::format("lr {:.2e}", m.lr), 1},
      {fmt::format("{} tokens/s", short_count(m.tokens_per_second)), 4},
      {has_mfu ? fmt::format("MFU {:.1f}%", 100.0 * *m.mfu) : "", 3},
      {fmt::format("{} left", format_seconds(seconds_left)), 5},
      {m.skipped ? "(skipped: overflow)" : "", 7},
  };
  std::erase_if(parts, [](const Part& part) { return part.text.empty(); });
  const auto joined = [&] {
    std::string text;
    for (const Part& part : parts) text += (text.empty() ? "" : "  ") + part.text;
    return text;
  };
  std::string text = joined();
  while (width > 0 && text.size() > static_cast<std::size_t>(width) && parts.size() > 2) {
    parts.erase(std::min_element(parts.begin(), parts.end(),
                                 [](const Part& a, const Part& b) { return a.importance < b.importance; }));
    text = joined();
  }
  return text;
}

ProgressOptions progress_options_for(std::FILE* out) {
  ProgressOptions options;
  const int descriptor = fileno(out);
  options.terminal = descriptor >= 0 && isatty(descriptor) != 0;
  options.seconds_between = options.terminal ? 0.1 : 10.0;
  options.width = [descriptor] { return static_cast<int>(terminal_columns(descriptor)); };
  return options;
}

Progress::Progress(std::FILE* out, ProgressOptions options) : out_(out), options_(std::move(options)) {}

void Progress::step(const StepMetrics& metrics) {
  const double left = seconds_left(metrics);
  const ProgressClock::time_point now = options_.now();
  const auto seconds_since = [now](ProgressClock::time_point then) {
    return std::chrono::duration<double>(now - then).count();
  };
  const bool marked = steps_seen_ == 1 || metrics.step >= options_.total_steps;
  if (!marked && seconds_since(last_line_) < options_.seconds_between) return;
  last_line_ = now;
  if (!options_.terminal) return keep_line(progress_text(metrics, options_.total_steps, left));
  // The last column stays free: writing it makes some terminals wrap.
  const auto width = static_cast<std::size_t>(std::max(options_.width() - 1, 1));
  std::string text = progress_text(metrics, options_.total_steps, left, static_cast<int>(width));
  text.resize(std::min(text.size(), width));
  if (marked || seconds_since(last_kept_) >= options_.seconds_kept) {
    last_kept_ = now;
    return keep_line(text);
  }
  put(out_, fmt::format("{}{}", kClearLine, text));
  line_open_ = true;
}

void Progress::eval(const EvalMetrics& metrics) {
  std::string text = fmt::format("step {}  eval loss {:.4f}", metrics.step, without_sign_of_nan(metrics.loss));
  if (metrics.bits_per_byte) text += fmt::format("  {:.4f} bits/byte", *metrics.bits_per_byte);
  text += fmt::format("  over {} tokens", metrics.tokens);
  keep_line(text);
}

void Progress::message(std::string_view text) {
  keep_line(text);
}

void Progress::finish() {
  if (line_open_) put(out_, "\n");
  line_open_ = false;
}

void Progress::keep_line(std::string_view text) {
  const std::string shown = options_.terminal
                                ? wrap(text, static_cast<std::size_t>(std::max(options_.width(), 1)))
                                : std::string(text);
  put(out_, fmt::format("{}{}\n", line_open_ ? kClearLine : "", shown));
  line_open_ = false;
}

double Progress::seconds_left(const StepMetrics& metrics) {
  constexpr double kWeight = 0.1;
  // The first step pays for starting up: the second takes its place.
  if (steps_seen_ < 2) mean_step_seconds_ = metrics.step_seconds;
  mean_step_seconds_ += kWeight * (metrics.step_seconds - mean_step_seconds_);
  ++steps_seen_;
  return mean_step_seconds_ * static_cast<double>(options_.total_steps - metrics.step);
}

}  // namespace meshtrain
