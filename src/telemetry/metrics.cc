#include "telemetry/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/number_text.h"

namespace meshtrain {
namespace {

std::string number(double value) {
  return std::isfinite(value) ? number_text(value) : "null";
}
std::string number(const std::optional<double>& value) {
  return value ? number(*value) : "null";
}

struct LineKind {
  std::int64_t step = 0;
  bool evaluation = false;
  bool rollback = false;
};

// Nothing for a line that is not ours.
std::optional<LineKind> kind_of_line(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return std::nullopt;
  return LineKind{.step = json["step"].get<std::int64_t>(),
                  .evaluation = json.contains("eval_loss"),
                  .rollback = json.contains("rollback")};
}

// Bytes of the whole lines before the first that `ends` says ends what is kept.
template <class Ends>
std::size_t bytes_before(std::string_view text, const Ends& ends) {
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) return begin;
    // A line that is not ours stays: steps ascend, so it says nothing about where to cut.
    const std::optional<LineKind> line = kind_of_line(text.substr(begin, end - begin));
    if (line && ends(*line)) return begin;
    begin = end + 1;
  }
}

}  // namespace

std::string to_json_line(const StepMetrics& m) {
  return fmt::format(
      R"({{"step": {}, "loss": {}, "grad_norm": {}, "lr": {}, "tokens": {}, "tokens_per_second": {}, )"
      R"("step_seconds": {}, "mfu": {}, "skipped": {}{}}})",
      m.step, number(m.loss), number(m.grad_norm), number(m.lr), m.tokens, number(m.tokens_per_second),
      number(m.step_seconds), number(m.mfu), m.skipped,
      m.loss_scale ? fmt::format(R"(, "loss_scale": {})", number(*m.loss_scale)) : "");
}

std::string to_json_line(const EvalMetrics& m) {
  return fmt::format(R"({{"step": {}, "eval_loss": {}, "eval_bits_per_byte": {}, "eval_tokens": {}}})", m.step,
                     number(m.loss), number(m.bits_per_byte), m.tokens);
}

std::string to_json_line(const RollbackMetrics& m) {
  std::string left_out;
  for (const auto& [first, count] : m.left_out) {
    left_out += fmt::format("{}[{}, {}]", left_out.empty() ? "" : ", ", first, count);
  }
  return fmt::format(
      R"({{"step": {}, "rollback": {{"bad_step": {}, "reason": {}, "loss": {}, "grad_norm": {}, "threshold": {}, )"
      R"("left_out": [{}]}}}})",
      m.step, m.bad_step, nlohmann::json(m.reason).dump(), number(m.loss), number(m.grad_norm),
      number(m.threshold), left_out);
}

std::size_t kept_bytes(std::string_view text, std::int64_t step) {
  return bytes_before(
      text, [step](const LineKind& line) { return line.step > step || (line.step == step && line.rollback); });
}

bool has_evaluation(const std::string& path, std::int64_t step) {
  if (access(path.c_str(), R_OK) != 0) return false;
  const MappedFile file = MappedFile::open(path, "the metrics file");
  const std::string_view text = file.text();
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string_view::npos;
       begin = end + 1) {
    const std::optional<LineKind> line = kind_of_line(text.substr(begin, end - begin));
    if (line && line->evaluation && line->step == step) return true;
  }
  return false;
}

MetricsFile::MetricsFile(const std::string& path, std::optional<std::int64_t> resumed_step) : path_(path) {
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_user_error("cannot open the metrics file {}: {}.", path, std::strerror(errno));
  try {
    shorten(resumed_step ? kept_bytes(MappedFile::open(path, "the metrics file").text(), *resumed_step) : 0);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

MetricsFile::~MetricsFile() {
  close(descriptor_);
}

void MetricsFile::append(const StepMetrics& metrics) {
  append_line(to_json_line(metrics));
}
void MetricsFile::append(const EvalMetrics& metrics) {
  append_line(to_json_line(metrics));
}

void MetricsFile::roll_back(const RollbackMetrics& metrics) {
  try {
    shorten(bytes_before(MappedFile::open(path_, "the metrics file").text(),
                         [&](const LineKind& line) { return line.step > metrics.step; }));
  } catch (const UserError& error) {
    throw RunError(error.what());
  }
  append_line(to_json_line(metrics));
}

void MetricsFile::shorten(std::size_t bytes) {
  // EINVAL: a pipe or a device has no length.
  if (ftruncate(descriptor_, static_cast<off_t>(bytes)) != 0 && errno != EINVAL) {
    throw_user_error("cannot shorten the metrics file {}: {}.", path_, std::strerror(errno));
  }
}

void MetricsFile::append_line(std::string line) {
  line += '\n';
  std::string_view left = line;
  while (!left.empty()) {
    const ssize_t written = write(descriptor_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      throw_run_error("cannot write to {}: {}.", path_, std::strerror(written < 0 ? errno : ENOSPC));
    }
    left.remove_prefix(static_cast<std::size_t>(written));
  }
}

void MetricsFile::sync() {
  // EINVAL: a pipe or a device has nothing to sync.
  if (fdatasync(descriptor_) != 0 && errno != EINVAL) {
    throw_run_error("cannot sync {}: {}.", path_, std::strerror(errno));
  }
}

}  // namespace meshtrain
