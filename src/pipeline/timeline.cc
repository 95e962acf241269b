#include "pipeline/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "base/error.h"
#include "pipeline/order_check.h"

namespace meshtrain {
namespace {

// What a message carries: the activation that a piece's forward pass takes, or the gradient for its backward
// pass.
struct Message {
  int piece = 0;
  std::int64_t micro_batch = 0;
  friend bool operator==(const Message&, const Message&) = default;
};

// The messages of one direction from one stage to another, each at the place of its turn.
class Edge {
 public:
  explicit Edge(double transfer) : transfer_(transfer), asked_(kReceiveBuffers, 0.0) {}

  // When the buffer of the message to be sent next is free; nothing while that is unknown.
  std::optional<double> buffer_free() const {
    if (sent_.size() < kSendBuffers) return 0.0;
    const std::size_t before = sent_.size() - kSendBuffers;
    if (before >= arrived_.size()) return std::nullopt;
    return arrived_[before];
  }
  void send(const Message& message, double at) {
    messages_.push_back(message);
    sent_.push_back(at);
    settle();
  }

  // Of the message to be used next.
  std::optional<double> arrival() const {
    if (used_ >= arrived_.size()) return std::nullopt;
    return arrived_[used_];
  }
  const Message& message() const { return messages_[used_]; }
  // Its buffer is free for another.
  void use(double at) {
    ++used_;
    asked_.push_back(at);
    settle();
  }
  // All that arrived.
  void add_to(std::vector<TimedMessage>& messages, TimedMessage message) const {
    for (std::size_t i = 0; i < arrived_.size(); ++i) {
      message.sent = sent_[i];
      message.asked = asked_[i];
      message.begin = begun_[i];
      message.end = arrived_[i];
      messages.push_back(message);
    }
  }

 private:
  void settle() {
    while (arrived_.size() < std::min(sent_.size(), asked_.size())) {
      const std::size_t i = arrived_.size();
      const double before = i == 0 ? 0.0 : arrived_[i - 1];
      begun_.push_back(std::max({sent_[i], asked_[i], before}));
      arrived_.push_back(begun_.back() + transfer_);
    }
  }

  double transfer_;
  std::vector<Message> messages_;
  std::vector<double> sent_;
  std::vector<double> asked_;
  std::vector<double> begun_;
  std::vector<double> arrived_;
  std::size_t used_ = 0;
};

// The state of simulate().
class Walk {
 public:
  Walk(const PipelineShape& shape, const std::vector<std::vector<PipelineAction>>& orders,
       const PipelineCosts& costs)
      : shape_(shape),
        orders_(orders),
        costs_(costs),
        clocks_(shape.stages),
        forward_edges_(shape.stages, Edge(costs.transfer)),
        backward_edges_(shape.stages, Edge(costs.transfer)) {
    timeline_.stages.resize(shape.stages);
  }

  Timeline run() {
    std::vector<int> awake;
    for (int stage = shape_.stages - 1; stage >= 0; --stage) awake.push_back(stage);
    while (!awake.empty()) {
      const int stage = awake.back();
      awake.pop_back();
      if (!go_on(stage)) continue;
      awake.push_back((stage + 1) % shape_.stages);
      awake.push_back((stage + shape_.stages - 1) % shape_.stages);
    }
    for (int stage = 0; stage < shape_.stages; ++stage) {
      if (clocks_[stage].next < orders_[stage].size()) throw std::logic_error(why_stopped());
      timeline_.seconds = std::max(timeline_.seconds, clocks_[stage].seconds);
      const int next = (stage + 1) % shape_.stages;
      const int before = (stage + shape_.stages - 1) % shape_.stages;
      forward_edges_[stage].add_to(timeline_.messages, {.from = stage, .to = next, .forward = true});
      backward_edges_[stage].add_to(timeline_.messages, {.from = stage, .to = before, .forward = false});
    }
    return std::move(timeline_);
  }

 private:
  struct Clock {
    std::size_t next = 0;  // action in the order
    double seconds = 0.0;
  };
  int piece_of(int stage, const PipelineAction& action) const { return action.chunk * shape_.stages + stage; }

  // Null where the input is the stage's own.
  Edge* input(int stage, const PipelineAction& action) {
    const int piece = piece_of(stage, action);
    if (shape_.stages == 1) return nullptr;
    if (action.step == PipelineStep::kForward && piece > 0) {
      return &forward_edges_[(stage + shape_.stages - 1) % shape_.stages];
    }
    if (action.step == PipelineStep::kBackward && piece + 1 < shape_.pieces()) {
      return &backward_edges_[(stage + 1) % shape_.stages];
    }
    return nullptr;
  }
  // Null where nothing is sent.
  Edge* output(int stage, const PipelineAction& action) {
    const int piece = piece_of(stage, action);
    if (shape_.stages == 1) return nullptr;
    if (action.step == PipelineStep::kForward && piece + 1 < shape_.pieces()) return &forward_edges_[stage];
    if (action.step == PipelineStep::kBackward && piece > 0) return &backward_edges_[stage];
    return nullptr;
  }

  // Runs the actions of a stage until one waits; whether any was run.
  bool go_on(int stage) {
    bool ran = false;
    while (clocks_[stage].next < orders_[stage].size() && run_next(stage)) ran = true;
    return ran;
  }

  // Whether its input and a buffer for its output are there.
  bool run_next(int stage) {
    Clock& clock = clocks_[stage];
    const PipelineAction& action = orders_[stage][clock.next];
    Edge* in = input(stage, action);
    Edge* out = output(stage, action);
    const std::optional<double> arrival = in != nullptr ? in->arrival() : 0.0;
    if (!arrival) return false;
    if (in != nullptr) check_message(stage, action, in->message());
    const std::optional<double> free = out != nullptr ? out->buffer_free() : 0.0;
    if (!free) return false;
    const double begin = std::max({clock.seconds, *arrival, *free});
    clock.seconds = begin + costs_.action(stage, action);
    timeline_.stages[stage].push_back({action, begin, clock.seconds});
    if (in != nullptr) in->use(clock.seconds);
    if (out != nullptr) {
      const int to = piece_of(stage, action) + (action.step == PipelineStep::kForward ? 1 : -1);
      out->send({to, action.micro_batch}, clock.seconds);
    }
    ++clock.next;
    return true;
  }

  void check_message(int stage, const PipelineAction& action, const Message& message) const {
    if (message == Message{piece_of(stage, action), action.micro_batch}) return;
    throw std::logic_error(fmt::format(
        "stage {} would run {}, but the message that comes next is for micro-batch {} of its chunk {}", stage,
        to_string(action, shape_.chunks), message.micro_batch, message.piece / shape_.stages));
  }

  std::string why_stopped() {
    std::string why;
    for (int stage = 0; stage < shape_.stages; ++stage) {
      if (clocks_[stage].next >= orders_[stage].size()) continue;
      const PipelineAction& action = orders_[stage][clocks_[stage].next];
      const Edge* in = input(stage, action);
      const bool for_input = in != nullptr && !in->arrival();
      const bool on_before = (action.step == PipelineStep::kForward) == for_input;
      why += fmt::format("{}stage {} at {} waits for {} stage {}", why.empty() ? "" : "; ", stage,
                         to_string(action, shape_.chunks),
                         for_input ? "its input from" : "a send buffer, all full of messages not received by",
                         (stage + (on_before ? shape_.stages - 1 : 1)) % shape_.stages);
    }
    return "no stage can go on: " + why;
  }

  const PipelineShape shape_;
  const std::vector<std::vector<PipelineAction>>& orders_;
  const PipelineCosts& costs_;
  std::vector<Clock> clocks_;
  std::vector<Edge> forward_edges_;  // by the stage that sends
  std::vector<Edge> backward_edges_;
  Timeline timeline_;
};

}  // namespace

PipelineCosts unit_costs(const PipelineSchedule& schedule, int chunks) {
  const double unit = 1.0 / chunks;
  const double backward = schedule.splits_backward ? unit : 2.0 * unit;
  return {.action =
              [=](int, const PipelineAction& action) {
                return action.step == PipelineStep::kBackward ? backward : unit;
              },
          .transfer = 0.0};
}

double Timeline::idle_fraction() const {
  double busy = 0.0;
  for (const std::vector<TimedAction>& stage : stages) {
    for (const TimedAction& timed : stage) busy += timed.end - timed.begin;
  }
  const double all = static_cast<double>(stages.size()) * seconds;
  return all > 0.0 ? 1.0 - busy / all : 0.0;
}

Timeline simulate(const PipelineShape& shape, const std::vector<std::vector<PipelineAction>>& orders,
                  const PipelineCosts& costs) {
  check(orders.size() == static_cast<std::size_t>(shape.stages), "an order for every stage");
  check_orders(shape, orders);
  return Walk(shape, orders, costs).run();
}

void check_schedule(const PipelineSchedule& schedule, const PipelineShape& shape) {
  if (shape.stages < 1 || shape.chunks < 1 || shape.micro_batches < 1) {
    throw_user_error(
        "mesh.schedule = \"{}\" is asked for with mesh.pp = {}, mesh.virtual_stages = {} and {} micro-batches "
        "a "
        "step; each must be at least 1",
        schedule.name, shape.stages, shape.chunks, shape.micro_batches);
  }
  if (shape.chunks > 1 && !schedule.takes_chunks) {
    std::vector<std::string> names = pipeline_schedule_names();
    std::erase_if(names, [](const std::string& name) { return !find_schedule(name)->takes_chunks; });
    throw_user_error(
        "mesh.schedule = \"{}\" has one piece of the model a stage, but mesh.virtual_stages = {}; set "
        "mesh.virtual_stages = 1, or mesh.schedule to \"{}\"",
        schedule.name, shape.chunks, fmt::join(names, "\" or \""));
  }
  try {
    simulate(shape, orders_of(schedule, shape), unit_costs(schedule, shape.chunks));
  } catch (const std::logic_error& error) {
    throw_user_error(
        "mesh.schedule = \"{}\" does not run with mesh.pp = {}, mesh.virtual_stages = {} and {} micro-batches "
        "a "
        "step: {}; choose another schedule ({}), or micro-batches that are a multiple of mesh.pp",
        schedule.name, shape.stages, shape.chunks, shape.micro_batches, error.what(),
        fmt::join(pipeline_schedule_names(), ", "));
  }
}

double published_idle_fraction(const PipelineSchedule& schedule, const PipelineShape& shape) {
  return schedule.idle_fraction(shape);
}

}  // namespace meshtrain
