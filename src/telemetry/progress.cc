#include "telemetry/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "telemetry/units.h"

namespace meshtrain {
namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";

std::string short_count(double value) {
  if (!std::isfinite(value)) return "n/a";
  if (value >= 1e6) return fmt::format("{:.2f}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

std::string mfu_text(const std::optional<double>& mfu) {
  return mfu && std::isfinite(*mfu) ? fmt::format("{:.1f}%", 100.0 * *mfu) : "n/a";
}

void put(std::FILE* out, std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), out);
  std::fflush(out);
}

}  // namespace

std::string progress_text(const StepMetrics& m, std::int64_t total_steps, double seconds_left) {
  return fmt::format("step {}/{}  loss {:.4f}  norm {:.2f}  lr {:.2e}  {} tokens/s  MFU {}  {} left{}", m.step,
                     total_steps, m.loss, m.grad_norm, m.lr, short_count(m.tokens_per_second), mfu_text(m.mfu),
                     format_seconds(seconds_left), m.skipped ? "  (skipped: overflow)" : "");
}

ProgressOptions progress_options_for(std::FILE* out) {
  ProgressOptions options;
  const int descriptor = fileno(out);
  options.terminal = descriptor >= 0 && isatty(descriptor) != 0;
  options.seconds_between = options.terminal ? 0.1 : 10.0;
  winsize size{};
  if (options.terminal && ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    options.width = size.ws_col;
  return options;
}

Progress::Progress(std::FILE* out, ProgressOptions options) : out_(out), options_(std::move(options)) {}

void Progress::step(const StepMetrics& metrics) {
  const double left = seconds_left(metrics);
  const bool first = steps_seen_ == 1;
  const ProgressClock::time_point now = options_.now();
  if (first && !options_.mfu_convention.empty()) keep_line("MFU counts " + options_.mfu_convention);
  const bool due = first || metrics.step >= options_.total_steps ||
                   std::chrono::duration<double>(now - last_line_).count() >= options_.seconds_between;
  if (!due) return;
  last_line_ = now;
  std::string text = progress_text(metrics, options_.total_steps, left);
  if (!options_.terminal) return keep_line(text);
  // The last column stays free: writing it makes some terminals wrap.
  text.resize(std::min(text.size(), static_cast<std::size_t>(std::max(options_.width - 1, 1))));
  put(out_, fmt::format("{}{}", kClearLine, text));
  line_open_ = true;
}

void Progress::eval(const EvalMetrics& metrics) {
  std::string text = fmt::format("step {}  eval loss {:.4f}", metrics.step, metrics.loss);
  if (metrics.bits_per_byte) text += fmt::format("  {:.4f} bits/byte", *metrics.bits_per_byte);
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
  put(out_, fmt::format("{}{}\n", line_open_ ? kClearLine : "", text));
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
