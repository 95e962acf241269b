// Runs a stage's actions in the order that a schedule gave, and moves activations and their gradients between
// stages meanwhile.
//
// A direction between two neighbours (activations to the next stage, gradients to the one before) has a
// communicator, a thread and kSendBuffers or kReceiveBuffers messages of its own at each end: messages are
// asked for ahead of their use, and an action does not wait for its result to be taken.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/trace.h"
#include "comm/comm_queue.h"
#include "comm/world.h"
#include "device/device.h"
#include "pipeline/schedule.h"

namespace meshtrain {

// What a stage does. Tensors are messages; undefined where the piece is the first or the last of the model.
class PipelineWork {
 public:
  PipelineWork() = default;
  PipelineWork(const PipelineWork&) = delete;
  PipelineWork& operator=(const PipelineWork&) = delete;
  virtual ~PipelineWork() = default;
  virtual void forward(int chunk, std::int64_t micro_batch, const Tensor& in, const Tensor& out) = 0;
  virtual void backward(int chunk, std::int64_t micro_batch, const Tensor& d_out, const Tensor& d_in) = 0;
  virtual void backward_weight(int chunk, std::int64_t micro_batch) = 0;
};

// Its parts in one direction, between this stage and a neighbour.
class PipelineLink;

class PipelineExecutor {
 public:
  // `ranks`: the world ranks of all stages of this pipeline, in order. A message has `shape` of `dtype`. A
  // collective call of the pipeline's ranks. World and device outlive it.
  PipelineExecutor(const PipelineShape& pipeline, int stage, World& world, std::span<const int> ranks,
                   Device& device, DType dtype, const Shape& shape);
  ~PipelineExecutor();
  PipelineExecutor(const PipelineExecutor&) = delete;
  PipelineExecutor& operator=(const PipelineExecutor&) = delete;

  // Returns when all actions are done and all that they need was received; what was sent last may be on its
  // way. All stages run orders of one schedule. Backward steps may be missing in all of them. An exception of
  // `work` aborts the world before it is passed on, since other stages, and jobs here, wait for what will never
  // be sent.
  void run(std::span<const PipelineAction> order, PipelineWork& work, Traffic traffic);

  // Returns when nothing is on its way. What has not begun to travel when the executor goes is never sent.
  void settle();
  CommStats sent() const { return sent_to_next() + sent_to_previous(); }
  CommStats sent_to_next() const;      // activations
  CommStats sent_to_previous() const;  // their gradients
  // Called after each action, its message handed over; null: nobody watches.
  void set_watch(std::function<void(const PipelineAction&)> watch) { watch_ = std::move(watch); }
  // Each direction has a track of its own, and `compute` shows waiting for it. Null: no more.
  void set_trace(Trace* trace, TraceTrack* compute);

 private:
  bool is_first(int chunk) const { return stage_ == 0 && chunk == 0; }
  bool is_last(int chunk) const { return stage_ + 1 == pipeline_.stages && chunk + 1 == pipeline_.chunks; }
  void run_action(const PipelineAction& action, PipelineWork& work, Traffic traffic);

  PipelineShape pipeline_;
  int stage_;
  World& world_;
  std::function<void(const PipelineAction&)> watch_;
  std::unique_ptr<PipelineLink> activations_in_, activations_out_, gradients_in_, gradients_out_;
};

}  // namespace meshtrain
