// A step of a run that never was, as the Chrome trace that `train --trace` would write of it.
#pragma once

#include <string>

#include "comm/sim/cost_model.h"
#include "train/config.h"

namespace meshtrain {

// How fast a rank is taken to be.
struct TraceRates {
  double flops_per_second = 1e12;  // of a rank
  Link tensor;                     // between tensor-parallel ranks
  Link network;                    // between stages, and between data-parallel ranks
  double memory_bytes_per_second = 0.0;
};
// machine.peak_tflops shared out evenly over the ranks where it is a number, else 1 TFLOP/s a rank; default
// links, tensor-parallel ranks on one host.
TraceRates trace_rates(const Config& config);
// "1 TFLOP/s a rank (machine.peak_tflops is not a number), …".
std::string to_string(const TraceRates& rates, const Config& config);

// Writes one step of one pipeline, i.e. of tensor- and data-parallel rank 0 of each stage, to `path`: tracks
// and events have the names of docs/tracing.md. FLOPs, bytes and the order of the actions are those of the
// trainer on a simulated device; times are modelled:
//  - an action takes its FLOPs, then the sums and gathers within its layers, one event of them all;
//  - messages travel as pipeline/timeline.h says;
//  - data-parallel communication goes on beside the actions, as fast as the link allows: gradients from the end
//    of the action that they come from, weights (ZeRO-3) from the beginning of the one that needs them, which
//    does not wait. With mesh.overlap = false both are parts of the action;
//  - the update waits for the gradients, and for the slowest stage;
//  - the update takes the bytes that it reads and writes.
// The config must be filled in as for make_plan(). Throws RunError where the file cannot be written.
void write_plan_trace(const Config& config, const TraceRates& rates, const std::string& path);
// How long that step takes.
double modelled_step_seconds(const Config& config, const TraceRates& rates);

}  // namespace meshtrain
