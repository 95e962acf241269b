#include "plan/plan_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "pipeline/timeline.h"
#include "plan/simulated_rank.h"
#include "telemetry/trace_file.h"
#include "telemetry/units.h"
#include "train/run_trace.h"
#include "train/stages.h"

namespace meshtrain {
namespace {

double seconds_of(std::int64_t bytes, const Link& link) {
  return bytes > 0 ? link.latency_seconds + static_cast<double>(bytes) / link.bytes_per_second : 0.0;
}

// Modelled seconds of what was counted.
class Pace {
 public:
  Pace(const Config& config, const TraceRates& rates) : overlap_(config.mesh.overlap), rates_(rates) {}

  double in_layers(const SimulatedRank::Cost& cost) const {
    return seconds_of(cost.sent[AxisTraffic::kTensorLayers], rates_.tensor);
  }
  double gradients(const SimulatedRank::Cost& cost) const {
    return seconds_of(cost.sent[AxisTraffic::kTensorCopies], rates_.tensor) +
           seconds_of(cost.sent[AxisTraffic::kDataGradients], rates_.network);
  }
  double weights(const SimulatedRank::Cost& cost) const {
    return seconds_of(cost.sent[AxisTraffic::kDataParameters], rates_.network);
  }
  double tied(const SimulatedRank::Cost& cost) const {
    return seconds_of(cost.sent[AxisTraffic::kTiedTable], rates_.network);
  }
  double update(const SimulatedRank::Cost& rest) const {
    return static_cast<double>(rest.ops.bytes) / rates_.memory_bytes_per_second;
  }
  // Of an action, with all that does not go on beside it.
  double action(const SimulatedRank::Cost& cost) const {
    const double alone = static_cast<double>(cost.ops.flops) / rates_.flops_per_second + in_layers(cost);
    return overlap_ ? alone : alone + weights(cost) + gradients(cost);
  }

 private:
  bool overlap_;
  const TraceRates& rates_;
};

// One rank's tracks, in the order of their first events.
class RankTracks {
 public:
  void add(const char* track, TraceKind kind, std::string name, double begin, double end) {
    const auto found =
        std::find_if(tracks_.begin(), tracks_.end(), [&](const Track& known) { return known.name == track; });
    Track& to = found != tracks_.end() ? *found : tracks_.emplace_back(Track{.name = track, .events = {}});
    to.events.push_back({.kind = kind, .name = std::move(name), .begin = begin, .end = end});
  }
  // Nothing where it takes no time.
  void add_if_any(const char* track, TraceKind kind, std::string name, double begin, double end) {
    if (end > begin) add(track, kind, std::move(name), begin, end);
  }

  void write(TraceText& text, int rank) {
    for (std::size_t track = 0; track < tracks_.size(); ++track) {
      const int number = static_cast<int>(track);
      std::vector<Event>& events = tracks_[track].events;
      // An outer one before those inside it.
      std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
        return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
      });
      text.track(rank, number, tracks_[track].name);
      for (const Event& event : events) {
        text.event(rank, number, event.kind, event.name, nanoseconds(event.begin), nanoseconds(event.end));
      }
    }
  }

 private:
  struct Event {
    TraceKind kind = TraceKind::kCompute;
    std::string name;
    double begin = 0.0;
    double end = 0.0;
  };
  struct Track {
    std::string_view name;
    std::vector<Event> events;
  };
  static std::int64_t nanoseconds(double seconds) { return std::llround(seconds * 1e9); }

  std::vector<Track> tracks_;
};

constexpr const char* kCompute = "compute";
constexpr const char* kJobs = "dp communication";
constexpr const char* track_of(bool forward, bool in) {
  if (forward) return in ? "pp activations in" : "pp activations out";
  return in ? "pp gradients in" : "pp gradients out";
}

// A stage, from its first action to the moment when it could update its weights.
class StageTrace {
 public:
  StageTrace(const Config& config, const Pace& pace, int stage)
      : config_(config),
        pace_(pace),
        stage_(stage),
        number_(static_cast<int>(rank_at(config.mesh, 0, 0, stage))),
        rank_(config, number_) {}

  const SimulatedRank& rank() const { return rank_; }
  double ready() const { return std::max(computed_, communicated_); }

  // `messages` of all stages.
  void add_actions(const std::vector<TimedAction>& timeline, const std::vector<TimedMessage>& messages) {
    std::vector<double> arrivals[2];  // of gradients, of activations
    for (const TimedMessage& message : messages) {
      if (message.to == stage_) arrivals[message.forward ? 1 : 0].push_back(message.end);
    }
    for (std::size_t i = 0; i < timeline.size(); ++i) {
      const bool forward = timeline[i].action.step == PipelineStep::kForward;
      add_wait(timeline[i].begin, forward, arrivals[forward ? 1 : 0]);
      add_action(timeline[i], rank_.actions()[i].cost);
    }
    double before[2] = {0.0, 0.0};
    for (const TimedMessage& message : messages) {
      if (message.to == stage_) {
        double& free = before[message.forward ? 1 : 0];
        tracks_.add_if_any(track_of(message.forward, true), TraceKind::kWait, "receive",
                           std::max(message.asked, free), message.end);
        free = message.end;
      }
      if (message.from == stage_) {
        tracks_.add_if_any(track_of(message.forward, false), TraceKind::kCommunication, "send", message.begin,
                           message.end);
      }
    }
  }

  // What is left of the gradients, once those of a tied table have arrived, where it awaits them. Returns when
  // its own are with the first stage, where it sends them.
  double add_gradients(bool sends_table, double arrival) {
    const SimulatedRank::Cost& rest = rank_.rest();
    communicated_ = ready();
    job(TraceKind::kWait, "receive tied gradients", arrival - communicated_);
    if (sends_table) job(TraceKind::kCommunication, "send tied gradients", pace_.tied(rest));
    const double sent = communicated_;
    job(TraceKind::kCommunication, "reduce gradients", pace_.gradients(rest));
    return sent;
  }

  // All stages begin their updates together.
  void add_update(double begin, bool sends_table) {
    const SimulatedRank::Cost& rest = rank_.rest();
    if (config_.mesh.overlap) {
      tracks_.add_if_any(kCompute, TraceKind::kWait, fmt::format("wait for {}", kJobs), computed_, ready());
    }
    tracks_.add_if_any(kCompute, TraceKind::kCommunication, "all-reduce control", ready(), begin);
    computed_ = communicated_ = begin + pace_.update(rest);
    tracks_.add(kCompute, TraceKind::kCompute, "optimizer", begin, computed_);
    if (sends_table) job(TraceKind::kCommunication, "send tied weights", pace_.tied(rest));
    job(TraceKind::kCommunication, "gather weights", pace_.weights(rest));
    tracks_.add(kCompute, TraceKind::kCompute, "step 1", 0.0, end());
  }
  // Of the step.
  double end() const { return config_.mesh.overlap ? computed_ : ready(); }

  void write(TraceText& text) {
    text.rank(number_, rank_name(rank_.assembly().groups.mesh, number_), "simulated");
    tracks_.write(text, number_);
    text.flush();
  }

 private:
  // Before an action that begins when its input arrives, or a buffer for its output is free.
  void add_wait(double begin, bool forward, const std::vector<double>& arrivals) {
    const bool for_input = std::binary_search(arrivals.begin(), arrivals.end(), begin);
    tracks_.add_if_any(kCompute, TraceKind::kWait, fmt::format("wait for {}", track_of(forward, for_input)),
                       computed_, begin);
  }

  void add_action(const TimedAction& timed, const SimulatedRank::Cost& cost) {
    tracks_.add(kCompute, TraceKind::kCompute,
                to_string(timed.action, static_cast<int>(config_.mesh.virtual_stages)), timed.begin, timed.end);
    const double weights = pace_.weights(cost);
    const double gradients = pace_.gradients(cost);
    double end = timed.end;
    if (config_.mesh.overlap) {
      communicated_ = std::max(communicated_, timed.begin);
      job(TraceKind::kCommunication, "gather weights", weights);
      if (gradients > 0.0) communicated_ = std::max(communicated_, timed.end);
      job(TraceKind::kCommunication, "reduce gradients", gradients);
    } else {
      tracks_.add_if_any(kCompute, TraceKind::kCommunication, "reduce gradients", end - gradients, end);
      end -= gradients;
      tracks_.add_if_any(kCompute, TraceKind::kCommunication, "gather weights", end - weights, end);
      end -= weights;
    }
    tracks_.add_if_any(kCompute, TraceKind::kCommunication,
                       fmt::format("collectives tp {}", format_bytes(cost.sent[AxisTraffic::kTensorLayers])),
                       end - pace_.in_layers(cost), end);
    computed_ = timed.end;
  }

  // Communication that waits for all before it, beside the computation where that may be.
  void job(TraceKind kind, const char* name, double seconds) {
    const double begin = communicated_;
    communicated_ += std::max(seconds, 0.0);
    tracks_.add_if_any(config_.mesh.overlap ? kJobs : kCompute, kind, name, begin, communicated_);
  }

  const Config& config_;
  const Pace& pace_;
  int stage_;
  int number_;
  SimulatedRank rank_;
  RankTracks tracks_;
  double computed_ = 0.0;      // when the thread that trains is free
  double communicated_ = 0.0;  // and when the jobs beside it are done
};

PipelineCosts costs_of(const std::vector<std::unique_ptr<StageTrace>>& stages, const PipelineShape& shape,
                       const Pace& pace, const TraceRates& rates) {
  const auto index = [shape](const PipelineAction& action) {
    const auto kind = static_cast<std::int64_t>(action.step) * shape.chunks + action.chunk;
    return static_cast<std::size_t>(kind * shape.micro_batches + action.micro_batch);
  };
  std::int64_t message = 0;
  std::vector<std::vector<double>> seconds;
  for (const std::unique_ptr<StageTrace>& stage : stages) {
    auto& of_stage = seconds.emplace_back(static_cast<std::size_t>(3 * shape.chunks * shape.micro_batches));
    for (const auto& [action, cost] : stage->rank().actions()) {
      of_stage[index(action)] = pace.action(cost);
      message = std::max({message, cost.sent[AxisTraffic::kNextStage], cost.sent[AxisTraffic::kPreviousStage]});
    }
  }
  return {.action =
              [seconds = std::move(seconds), index](int stage, const PipelineAction& action) {
                return seconds[static_cast<std::size_t>(stage)][index(action)];
              },
          .transfer = seconds_of(message, rates.network)};
}

// A step of all stages, to its end.
std::vector<std::unique_ptr<StageTrace>> trace_step(const Config& config, const Pace& pace,
                                                    const TraceRates& rates) {
  const PipelineShape shape = pipeline_of(config);
  std::vector<std::unique_ptr<StageTrace>> stages;
  for (int stage = 0; stage < shape.stages; ++stage) {
    stages.push_back(std::make_unique<StageTrace>(config, pace, stage));
  }
  const Timeline timeline =
      simulate(shape, orders_of(schedule_of(config.mesh), shape), costs_of(stages, shape, pace, rates));
  for (std::size_t i = 0; i < stages.size(); ++i) stages[i]->add_actions(timeline.stages[i], timeline.messages);
  // A tied table's gradients go from the last stage to the first.
  const bool tied = config.model.tie_embeddings && shape.stages > 1;
  const double arrival = tied ? stages.back()->add_gradients(true, 0.0) : 0.0;
  double begin = 0.0;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const bool is_done = tied && i + 1 == stages.size();
    if (!is_done) stages[i]->add_gradients(false, i == 0 ? arrival : 0.0);
    begin = std::max(begin, stages[i]->ready());
  }
  for (std::size_t i = 0; i < stages.size(); ++i) stages[i]->add_update(begin, tied && i == 0);
  return stages;
}

}  // namespace

TraceRates trace_rates(const Config& config) {
  TraceRates rates = {.tensor = default_link(LinkKind::kLocal), .network = default_link(LinkKind::kNetwork)};
  rates.memory_bytes_per_second = rates.tensor.bytes_per_second;
  const double all = config.machine.peak_tflops;
  if (all > 0.0) rates.flops_per_second = all * 1e12 / static_cast<double>(ranks_of(config.mesh));
  return rates;
}

std::string to_string(const TraceRates& rates, const Config& config) {
  const auto text_of = [](const Link& link) {
    return fmt::format("{:g} GB/s after {:g} us", link.bytes_per_second * 1e-9, link.latency_seconds * 1e6);
  };
  return fmt::format(
      "{:g} TFLOP/s a rank ({}), {} between tensor-parallel ranks, {} between others, and an update at {:g} "
      "GB/s",
      rates.flops_per_second * 1e-12,
      config.machine.peak_tflops > 0.0 ? "its share of machine.peak_tflops"
                                       : "machine.peak_tflops is not a number",
      text_of(rates.tensor), text_of(rates.network), rates.memory_bytes_per_second * 1e-9);
}

void write_plan_trace(const Config& config, const TraceRates& rates, const std::string& path) {
  const Pace pace(config, rates);
  const std::vector<std::unique_ptr<StageTrace>> stages = trace_step(config, pace, rates);
  TraceFile file(path);
  TraceText text([&](std::string_view chunk) { file.write(chunk); });
  for (const std::unique_ptr<StageTrace>& stage : stages) stage->write(text);
  file.close();
}

double modelled_step_seconds(const Config& config, const TraceRates& rates) {
  const Pace pace(config, rates);
  double seconds = 0.0;
  for (const std::unique_ptr<StageTrace>& stage : trace_step(config, pace, rates)) {
    seconds = std::max(seconds, stage->end());
  }
  return seconds;
}

}  // namespace meshtrain
