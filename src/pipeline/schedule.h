// Pipeline schedules: in which order a stage runs the forward and backward passes of its micro-batches.
//
// A model is cut into stages·chunks pieces in the order of its layers; rank `stage` has pieces stage,
// stage + stages, …: chunk c is piece c·stages + stage (Narayanan et al. 2021, section 2.2). A schedule only
// yields an order; the executor derives what is sent and received, and check_schedule() proves that it ends.
//
//   name         file               order
//   gpipe        gpipe.cc           all forward, then all backward (Huang et al. 2019)
//   1f1b         one_f_one_b.cc     one forward, one backward after min(m, p-1-r) forwards on stage r
//                                   (Narayanan et al. 2019, "PipeDream"; with flushes)
//   interleaved  interleaved.cc     1f1b over v chunks a stage (Narayanan et al. 2021, section 2.2)
//   zb-h1        zb_h1.cc           1f1b with the backward pass in two parts, weight gradients fill the bubble
//                                   (Qi et al. 2024, "Zero bubble pipeline parallelism", section 2.1)
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

enum class PipelineStep : std::uint8_t {
  kForward,
  kBackward,        // gradients of inputs; of weights too, unless the schedule splits
  kBackwardWeight,  // of weights
};

struct PipelineAction {
  PipelineStep step = PipelineStep::kForward;
  int chunk = 0;
  std::int64_t micro_batch = 0;
  friend bool operator==(const PipelineAction&, const PipelineAction&) = default;
};
// "F3", "B0", "W2"; with several chunks "F3.1".
std::string to_string(const PipelineAction& action, int chunks);

struct PipelineShape {
  int stages = 1;
  int chunks = 1;  // a stage; the field's virtual stages
  std::int64_t micro_batches = 1;
  int pieces() const { return stages * chunks; }
};

struct PipelineSchedule {
  std::string_view name;
  bool splits_backward = false;  // its orders have kBackwardWeight
  bool takes_chunks = false;     // more than one a stage
  // The published part of the time in which a stage is idle when actions take unit_costs() (timeline.h).
  std::string_view idle_formula;  // of p stages, m micro-batches, v chunks: "(p-1)/(m+p-1)"
  double (*idle_fraction)(const PipelineShape& shape) = nullptr;
  // Every step of every micro-batch of the stage's chunks once. Each chunk sees its micro-batches in order, in
  // every step.
  std::vector<PipelineAction> (*order)(const PipelineShape& shape, int stage) = nullptr;
};
// Null where there is none of this name.
const PipelineSchedule* find_schedule(std::string_view name);
std::vector<std::string> pipeline_schedule_names();

// Orders of all stages. More than one chunk only where the schedule takes them.
std::vector<std::vector<PipelineAction>> orders_of(const PipelineSchedule& schedule,
                                                   const PipelineShape& shape);

// Micro-batches that are alive at once on a stage, at most, those of all chunks together: from their forward
// pass to the end of their last backward part. A micro-batch of chunk c counts weights[c] times.
std::int64_t peak_live(const std::vector<PipelineAction>& order, const std::vector<std::int64_t>& weights);
// All weights 1.
std::int64_t peak_live(const std::vector<PipelineAction>& order);
// Micro-batches that are between the two parts of their backward pass at once, at most, either part included; 0
// where the order has no second part.
std::int64_t peak_split(const std::vector<PipelineAction>& order);

}  // namespace meshtrain
