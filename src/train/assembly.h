// Everything one rank needs to train, laid out in device memory before the first step: parameters,
// optimizer state, arenas, batch. The same code runs on `cpu` and on `sim`; what it allocates on
// `sim` is the plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device/arena.h"
#include "device/stream.h"
#include "model/transformer.h"
#include "optim/loss_scale.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "params/param_store.h"
#include "train/config.h"

namespace meshtrain {

// Bytes that the arenas of one step reach.
struct ArenaSizes {
  std::int64_t saved = 0;
  std::int64_t work = 0;
};

// Runs one step and one evaluation over measuring arenas on a simulated device.
ArenaSizes measure_arenas(const Config& config);

// The same for a run on `device`: throws UserError with the bytes by category when it has not so many to give.
ArenaSizes plan_memory(const Config& config, const Device& device);

class Assembly {
 public:
  // config.model.vocab must be known. Without sizes the arenas only measure (simulated device).
  // Throws UserError when the device has not the memory.
  Assembly(const Config& config, Device& device, const std::optional<ArenaSizes>& sizes);
  Assembly(const Assembly&) = delete;
  Assembly& operator=(const Assembly&) = delete;

  // Initial weights from the seed. (A restored checkpoint needs none.)
  void initialize() { params.initialize(stream, config_.train.seed); }

  const Config& config() const { return config_; }
  BatchShape micro_batch_shape() const;
  std::int64_t micro_steps() const { return config_.train.global_batch / config_.train.micro_batch; }
  Context context(bool accumulate);

  // Optimizer state `index` of a parameter, in its shape.
  Tensor optimizer_state(const Param& param, std::size_t index) const;
  ParameterSpan span_of(const Param& param) const;

  // Bytes of the copy that an asynchronous checkpoint is written from.
  std::int64_t checkpoint_copy_bytes() const;

  // Bytes by category: blocks as allocated, arenas at their full size.
  MemoryUse planned_memory() const;
  // The same, arenas as far as they were filled so far.
  MemoryUse peak_memory() const;

  Stream stream;
  ParamStore params;
  std::unique_ptr<Transformer> model;
  std::unique_ptr<const Optimizer> optimizer;
  Schedule schedule;
  std::optional<LossScaler> loss_scaler;  // fp16
  Tensor tokens;                          // int32 [micro_batch·seq]
  Tensor targets;
  Arena saved;
  Arena work;

 private:
  Config config_;
  Device& device_;
  Buffer batch_buffer_;
  std::vector<Buffer> optimizer_buffers_;
};

}  // namespace meshtrain
