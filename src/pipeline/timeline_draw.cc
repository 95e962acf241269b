#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "pipeline/timeline.h"

namespace meshtrain {
namespace {

// Columns are counted in forward passes of one chunk: at unit costs everything is a multiple.
class Drawing {
 public:
  Drawing(const Timeline& timeline, int chunks, int columns) : timeline_(timeline), chunks_(chunks) {
    units_ = column(timeline.seconds);
    for (const std::vector<TimedAction>& stage : timeline.stages) {
      for (const TimedAction& timed : stage) width_ = std::max(width_, name(timed).size() + 1);
    }
    label_ = fmt::format("{}", timeline.stages.size() - 1).size();
    const std::size_t before = std::string_view("stage  | ").size() + label_;
    const std::size_t room = std::max<std::int64_t>(0, columns) > static_cast<std::int64_t>(before)
                                 ? static_cast<std::size_t>(columns) - before
                                 : 0;
    shown_ = std::clamp<std::int64_t>(static_cast<std::int64_t>((room + 1) / width_), 1, units_);
  }
  std::int64_t units() const { return units_; }
  std::int64_t shown() const { return shown_; }

  std::string row(int stage) const {
    std::string cells;
    std::int64_t at = 0;
    for (const TimedAction& timed : timeline_.stages[stage]) {
      cells += idle(column(timed.begin) - at);
      at = column(timed.end);
      const std::size_t length = static_cast<std::size_t>(at - column(timed.begin)) * width_;
      if (length == 0) continue;
      const std::string text = name(timed);
      cells += fmt::format("{:-<{}}", text, length > width_ ? length - 1 : text.size());
      cells.resize(static_cast<std::size_t>(at) * width_, ' ');
      if (at >= shown_) break;
    }
    if (at < shown_) cells += idle(shown_ - at);
    cells.resize(static_cast<std::size_t>(shown_) * width_ - 1);
    cells.erase(cells.find_last_not_of(' ') + 1);
    return fmt::format("stage {:>{}} | {}\n", stage, label_, cells);
  }

 private:
  std::int64_t column(double seconds) const { return std::llround(seconds * chunks_); }
  std::string name(const TimedAction& timed) const { return to_string(timed.action, chunks_); }
  std::string idle(std::int64_t units) const {
    std::string cell(width_ - 1, '.');
    std::string cells;
    for (std::int64_t i = 0; i < units; ++i) cells += cell + ' ';
    return cells;
  }

  const Timeline& timeline_;
  int chunks_;
  std::int64_t units_ = 0;
  std::int64_t shown_ = 0;
  std::size_t width_ = 0;  // of a column, a space at its end
  std::size_t label_ = 0;
};

}  // namespace

std::string draw(const PipelineSchedule& schedule, const PipelineShape& shape, int columns) {
  const Timeline timeline = simulate(shape, orders_of(schedule, shape), unit_costs(schedule, shape.chunks));
  const Drawing drawing(timeline, shape.chunks, columns);
  std::string text;
  for (int stage = 0; stage < shape.stages; ++stage) text += drawing.row(stage);
  if (drawing.shown() < drawing.units()) {
    text += fmt::format("cut to {} columns: the first {} of {} units of time\n", columns, drawing.shown(),
                        drawing.units());
  }
  const std::int64_t all = drawing.units() * shape.stages;
  const std::int64_t idle = all - 3 * shape.micro_batches * shape.pieces();
  const std::int64_t divisor = std::gcd(idle, all);
  const double fraction = static_cast<double>(idle) / static_cast<double>(all);
  const double published = published_idle_fraction(schedule, shape);
  text += fmt::format("idle {:.1f} % of the time ({}/{}); published {} = {:.1f} %{}\n", 100.0 * fraction,
                      idle / divisor, all / divisor, schedule.idle_formula, 100.0 * published,
                      std::abs(fraction - published) < 1e-9 ? "" : ", where m is a multiple of p");
  return text;
}

}  // namespace meshtrain
