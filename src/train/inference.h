// A model without its training state: what `eval` and `generate` run.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/arena.h"
#include "device/stream.h"
#include "model/transformer.h"
#include "params/param_store.h"
#include "train/step.h"

namespace meshtrain {

struct InferenceShape {
  BatchShape largest;                // of one forward pass
  std::int64_t cache_positions = 0;  // positions of the key-value cache; 0: none
};

class InferenceModel {
 public:
  // Weights are zero until they are loaded into `params` (see train/checkpointing.h).
  InferenceModel(const ModelSpec& spec, DType compute, const InferenceShape& shape, int threads);
  InferenceModel(const InferenceModel&) = delete;
  InferenceModel& operator=(const InferenceModel&) = delete;

  Stream& stream() { return stream_; }
  ParamStore& params() { return params_; }
  std::int64_t context() const { return shape_.cache_positions; }

  // Losses of the sequences of one batch of the largest shape.
  std::vector<EvalResult> evaluate(const HostBatch& batch);

  // Appends tokens of one sequence to the cache; logits of the last, [vocab].
  std::vector<float> next_logits(std::span<const std::int32_t> tokens);
  std::int64_t cached() const;
  void clear_cache();

 private:
  InferenceModel(const ModelSpec& spec, DType compute, const InferenceShape& shape, int threads,
                 std::unique_ptr<Device> device);
  void run_largest();
  Context make_context();

  InferenceShape shape_;
  std::unique_ptr<Device> device_;
  Stream stream_;
  ParamStore params_;
  UnitHooks units_;
  TensorGroup alone_;
  std::unique_ptr<Transformer> model_;
  Buffer batch_buffer_;
  Buffer cache_buffer_;
  Tensor tokens_;
  Tensor targets_;
  std::vector<KvCache> caches_;
  Arena saved_;
  Arena work_;
};

}  // namespace meshtrain
