#include "train/inference.h"

#include <algorithm>

#include "ops/transfer.h"

namespace meshtrain {
InferenceModel::InferenceModel(const ModelSpec& spec, DType compute, const InferenceShape& shape, int threads)
    : InferenceModel(spec, compute, shape, threads, make_cpu_device()) {
  // The same model on a simulated device says how large the arenas have to be.
  InferenceModel measured(spec, compute, shape, threads, make_sim_device());
  measured.run_largest();
  saved_ = Arena(*device_, MemoryCategory::kActivations, "activations", measured.saved_.peak());
  work_ = Arena(*device_, MemoryCategory::kWorkspace, "workspace", measured.work_.peak());
  model_->upload_tables(stream_);
}

InferenceModel::InferenceModel(const ModelSpec& spec, DType compute, const InferenceShape& shape, int threads,
                               std::unique_ptr<Device> device)
    : shape_(shape),
      device_(std::move(device)),
      stream_(*device_, threads),
      saved_(Arena::measuring("activations")),
      work_(Arena::measuring("workspace")) {
  const std::int64_t positions = std::max(shape.largest.seq, shape.cache_positions);
  model_ = std::make_unique<Transformer>(spec, params_, *device_,
                                         TransformerOptions{.compute = compute, .positions = positions});
  params_.allocate(*device_, {.compute = compute, .training = false, .sharding = {}});
  const std::int64_t tokens = shape.largest.tokens();
  const std::int64_t bytes = tokens * size_of(DType::kI32);
  batch_buffer_ = device_->allocate(2 * bytes, MemoryCategory::kWorkspace);
  tokens_ = tensor_in(batch_buffer_, 0, DType::kI32, {tokens});
  targets_ = tensor_in(batch_buffer_, bytes, DType::kI32, {tokens});
  if (shape.cache_positions == 0) return;

  const Shape cache = {1, shape.cache_positions, spec.kv_heads, spec.head_dim};
  const std::int64_t cache_bytes = cache.numel() * size_of(compute);
  cache_buffer_ = device_->allocate(2 * spec.layers * cache_bytes, MemoryCategory::kActivations);
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    caches_.push_back({.keys = tensor_in(cache_buffer_, 2 * i * cache_bytes, compute, cache),
                       .values = tensor_in(cache_buffer_, (2 * i + 1) * cache_bytes, compute, cache)});
  }
}

void InferenceModel::run_largest() {
  const std::vector<std::int32_t> zeros(static_cast<std::size_t>(shape_.largest.tokens()), 0);
  if (shape_.cache_positions > 0) {
    next_logits(zeros);
  } else {
    evaluate({.tokens = zeros, .targets = zeros});
  }
}

Context InferenceModel::make_context() {
  return {.stream = stream_,
          .saved = saved_,
          .work = work_,
          .kept = work_,
          .recomputed = saved_,
          .units = units_,
          .tensor = alone_};
}

std::vector<EvalResult> InferenceModel::evaluate(const HostBatch& batch) {
  Context ctx = make_context();
  return evaluate_micro_batch(*model_, ctx, shape_.largest, batch, tokens_, targets_);
}

std::vector<float> InferenceModel::next_logits(std::span<const std::int32_t> tokens) {
  check(static_cast<std::int64_t>(tokens.size()) <= shape_.largest.seq &&
            cached() + static_cast<std::int64_t>(tokens.size()) <= shape_.cache_positions,
        "more tokens than the key-value cache has room for");
  const BatchShape shape = {.batch = 1, .seq = static_cast<std::int64_t>(tokens.size())};
  const ArenaScope scope(work_);
  Context ctx = make_context();
  const Tensor fresh = tokens_.slice(0, 0, shape.seq);
  ops::copy_from_host(stream_, tokens.data(), fresh);
  const Tensor logits = model_->decode(ctx, shape, fresh, caches_);
  std::vector<float> result(static_cast<std::size_t>(logits.numel()));
  ops::copy_to_host(stream_, logits, result.data());
  return result;
}

std::int64_t InferenceModel::cached() const {
  return caches_.empty() ? 0 : caches_.front().used;
}

void InferenceModel::clear_cache() {
  for (KvCache& cache : caches_) cache.used = 0;
}

}  // namespace meshtrain
