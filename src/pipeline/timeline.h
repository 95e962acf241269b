// When every action of a pipeline runs: all stages together on virtual clocks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pipeline/schedule.h"

namespace meshtrain {

// Messages of one direction between neighbours that may be on their way: a stage has so many buffers for what
// it sends and was not taken yet, and its neighbour asks for so many ahead of their use.
inline constexpr int kSendBuffers = 2;
inline constexpr int kReceiveBuffers = 2;

struct PipelineCosts {
  // Seconds of an action on a stage.
  std::function<double(int stage, const PipelineAction& action)> action;
  // Seconds that an activation, or its gradient, travels from one stage to the next.
  double transfer = 0.0;
};
// A forward takes 1, a backward 2, or 1 and 1 where it is split; divided by the chunks of a stage. Transfers
// take none.
PipelineCosts unit_costs(const PipelineSchedule& schedule, int chunks);

struct TimedAction {
  PipelineAction action;
  double begin = 0.0;
  double end = 0.0;
};
// An activation on its way to the next stage (forward), or its gradient back.
struct TimedMessage {
  int from = 0;
  int to = 0;
  bool forward = true;
  double sent = 0.0;   // when its sender was done with it
  double asked = 0.0;  // when its receiver had a buffer for it
  double begin = 0.0;  // of its way: sent and asked for, the one before it arrived
  double end = 0.0;
};
struct Timeline {
  std::vector<std::vector<TimedAction>> stages;
  std::vector<TimedMessage> messages;  // of one direction between two stages in order
  double seconds = 0.0;
  // Part of stages·seconds in which a stage does nothing.
  double idle_fraction() const;
};

// Runs the orders as the executor does. An action waits for its input, and for a buffer for the message that it
// sends: until the one kSendBuffers before was received. When it ends, its stage asks for the message
// kReceiveBuffers after the one that it used. A message travels when it is sent and asked for; those of one
// direction travel one after another. Pieces of one stage hand over without a message.
// Whether the orders end depends on no cost: every stage has a fixed order, and all waiting is for given
// messages. Throws std::logic_error naming the stage, its action and what it waits for when no stage can go on,
// or when messages of one direction would be used in another order than they are sent; also when an order lacks
// an action, has one twice, or breaks the rules of PipelineSchedule::order.
Timeline simulate(const PipelineShape& shape, const std::vector<std::vector<PipelineAction>>& orders,
                  const PipelineCosts& costs);

// What simulate() would find, before a run: UserError that names mesh.schedule, the sizes and what to change.
void check_schedule(const PipelineSchedule& schedule, const PipelineShape& shape);

// The published idle fraction at unit costs: (p-1)/(m+p-1) for gpipe and 1f1b, (p-1)/(v·m+p-1) interleaved,
// (p-1)/(3m+p-1) for zb-h1. simulate() finds the same for every m with gpipe and 1f1b, for m ≥ p with zb-h1,
// and interleaved for multiples of p and the other m that interleaved.cc names.
double published_idle_fraction(const PipelineSchedule& schedule, const PipelineShape& shape);

// A row a stage, a column a unit of time (the cost of a forward), "B0---" what takes longer, idle time as dots;
// and the idle fraction beside the published one. What is wider than `columns` characters is cut, and says so.
std::string draw(const PipelineSchedule& schedule, const PipelineShape& shape, int columns);

}  // namespace meshtrain
