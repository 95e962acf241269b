// Everything one rank needs to train, laid out in device memory before the first step: parameters,
// optimizer state, arenas, batch. The same code runs on `cpu` and on `sim`; what it allocates on
// `sim` is the plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/huggingface/token_ids.h"
#include "comm/comm_queue.h"
#include "comm/world.h"
#include "device/arena.h"
#include "device/stream.h"
#include "gradsync/copy_sum.h"
#include "gradsync/grad_sync.h"
#include "gradsync/gradient_norm.h"
#include "model/transformer.h"
#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "params/param_store.h"
#include "pipeline/executor.h"
#include "train/activation_slots.h"
#include "train/config.h"
#include "train/mesh.h"
#include "train/mesh_layout.h"

namespace meshtrain {

// Bytes that the arenas of one step reach, and the pool of whole units that ZeRO needs.
struct ArenaSizes {
  SlotBytes activations;
  std::int64_t work = 0;
  std::int64_t recomputed = 0;  // one block's, with full recompute
  std::int64_t transient = 0;
};

class Trace;

class Assembly {
 public:
  // config.model.vocab must be known, and world have the mesh's ranks; a collective call. Without sizes the
  // arenas only measure (simulated device). Throws UserError when the device has not the memory.
  Assembly(const Config& config, Device& device, World& world, const std::optional<ArenaSizes>& sizes);
  Assembly(const Assembly&) = delete;
  Assembly& operator=(const Assembly&) = delete;

  // Initial weights from the seed. (A restored checkpoint needs none.)
  void initialize();
  // Optimizer state and loss scale as before the first step.
  void reset_optimizer();
  // Whole weights on every rank from the masters that each owns, after these were loaded.
  void publish_masters();

  const Config& config() const { return config_; }
  BatchShape micro_batch_shape() const;
  // Ranks that see samples of their own.
  std::int64_t replicas() const { return config_.mesh.dp; }
  bool leads() const { return groups.control->rank() == 0; }
  // Of this rank in a step.
  std::int64_t micro_steps() const { return pipeline_.micro_batches; }
  // Which micro-batch of the global batch this rank's micro-step `step` is.
  std::int64_t micro_batch_index(std::int64_t step) const { return step * replicas() + groups.dp->rank(); }

  // What this rank does in a step, in order, and the units that are acquired meanwhile, in all and in one
  // action.
  const std::vector<PipelineAction>& order() const { return order_; }
  std::span<const int> acquires() const { return acquires_; }
  std::vector<int> acquires_of(const PipelineAction& action) const;
  // The same for an evaluation of so many micro-batches, forward only.
  std::vector<PipelineAction> evaluation_order(std::int64_t micro_batches) const;

  // The stage's pieces, by chunk.
  const std::vector<ModelPiece>& pieces() const { return pieces_; }
  const SlotCounts& slot_counts() const { return slot_counts_; }
  // What layers of a micro-batch with slots of its own run in. `split`: for what stays until gradients of
  // weights, where the schedule has them apart; null: nothing stays.
  Context context(Arena* split);
  // Between steps.
  Context evaluation_context();
  // Arenas as far as they were filled so far.
  ArenaSizes arena_peaks() const;

  // Optimizer state `index` of what this rank owns of a unit: flat, like the store's owned tensors.
  Tensor owned_optimizer_state(int unit, std::size_t index) const;
  ParameterSpan span_of(const OwnedSlice& slice) const;

  // Where this rank's share of a checkpoint is copied to, so that training goes on while it is written; empty
  // where it waits (checkpoint.async).
  std::span<std::byte> checkpoint_copy() const;

  // Bytes by category: blocks as allocated, arenas at their full size.
  MemoryUse planned_memory() const;
  // The same, arenas as far as they were filled so far.
  MemoryUse peak_memory() const;
  // Returns when no communication is under way any more.
  void settle();
  // What is done from here on is recorded: "compute" is the thread that trains, and each queue that works
  // beside it has a track of its own. Null: no more. Waits until everything is settled. The trace outlives its
  // use.
  void set_trace(Trace* trace);
  // What this rank sent so far, once it is settled.
  CommStats sent() const { return groups.sent() + executor->sent(); }

  RankGroups groups;
  MeshLayout layout;  // what every rank holds
  Stream stream;
  ParamStore params;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<const Optimizer> optimizer;
  std::optional<UnitSquares> squares;
  NormPlace norm_place;
  Schedule schedule;
  std::optional<LossScaler> loss_scaler;  // fp16
  std::optional<HfTokenIds> token_ids;    // of the Hugging Face folder that the weights began with
  Tensor tokens;                          // int32 [micro_batch·seq]
  Tensor targets;
  Arena work;
  Arena recomputed;
  std::optional<ActivationSlots> activations;
  std::unique_ptr<PipelineExecutor> executor;

 private:
  void allocate_parameters();
  void allocate_batch();
  void lay_out_pipeline(const std::optional<ArenaSizes>& sizes);
  TiedLink tied_link() const;

  Config config_;
  Device& device_;
  PipelineShape pipeline_;
  std::vector<PipelineAction> order_;
  std::vector<int> acquires_;
  std::vector<ModelPiece> pieces_;
  SlotCounts slot_counts_;
  Arena nothing_;
  Buffer batch_buffer_;
  std::vector<Buffer> optimizer_buffers_;
  Buffer checkpoint_copy_;
  std::optional<gradsync::CopySum> copies_;

 public:
  TensorGroup tensor;
  TensorGroup tensor_in_evaluation;
  std::unique_ptr<GradSync> sync;

 private:
  // They end first: their jobs use all of the above.
  CommQueue layer_queue_;  // sums within layers
  CommQueue queue_;        // gradients and weights
};

}  // namespace meshtrain
