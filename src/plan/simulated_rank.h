// One rank of the trainer on a simulated device, after a step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/world.h"
#include "device/device.h"
#include "pipeline/schedule.h"
#include "train/assembly.h"
#include "train/axis_bytes.h"

namespace meshtrain {

class SimulatedRank {
 public:
  // What was counted in a part of the step.
  struct Cost {
    OpCost ops;
    AxisBytes sent;
  };
  struct Action {
    PipelineAction action;
    Cost cost;
  };

  // Its arenas only measure: what it counts is not how large they are.
  SimulatedRank(const Config& config, std::int64_t rank);

  const Assembly& assembly() const { return assembly_; }
  // The actions of the step in their order, each with what came since the one before; then what is left: the
  // last gradients, the optimizer, and the weights that it changed.
  const std::vector<Action>& actions() const { return actions_; }
  const Cost& rest() const { return rest_; }

 private:
  Cost since_last();

  std::unique_ptr<World> world_;
  std::unique_ptr<Device> device_;
  Assembly assembly_;
  std::vector<Action> actions_;
  Cost rest_;
  Cost last_;  // all up to the last action
};

}  // namespace meshtrain
