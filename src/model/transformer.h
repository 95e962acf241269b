// A decoder-only language model: embedding, blocks, final norm and head.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/block.h"
#include "model/embedding.h"
#include "model/lm_head.h"
#include "model/recompute.h"
#include "model/spec.h"

namespace meshtrain {

// What one layer cost in one micro-batch, as counted while it ran.
struct LayerProfile {
  std::string name;
  std::int64_t parameters = 0;
  std::int64_t activation_bytes = 0;  // kept for the backward pass
  std::int64_t forward_flops = 0;
  std::int64_t backward_flops = 0;  // recompute included
};

class Transformer {
 public:
  // One micro-batch between its forward and its backward pass. Tensors lie in the context's arenas.
  struct MicroBatch {
    BatchShape shape;
    Tensor tokens;   // int32 [tokens]
    Tensor targets;  // int32 [tokens]; ops::kIgnoredTarget masks
    Tensor losses;   // fp32 [tokens], filled by forward

    std::vector<Block::Saved> blocks;
    NormSaved final_norm;
    Tensor d_final;  // gradient of the final norm's output
    bool head_accumulates = false;
  };

  // Declares all parameters. The rotary table, if any, is allocated on `device` for `positions`
  // positions; upload_tables fills it.
  Transformer(const ModelSpec& spec, ParamStore& store, Device& device, DType compute, std::int64_t positions,
              RecomputePolicy recompute);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  void upload_tables(Stream& stream);

  // Units (of the ParamStore, in order of declaration) as a forward and a backward pass acquire them, or an
  // evaluation. Each is acquired once a pass, whatever its layers read in it: what a strategy sends does not
  // hang on that. A tied head is the second use of the embedding, whose backward pass then needs none.
  std::vector<int> training_order() const;
  std::vector<int> evaluation_order() const;

  // Losses of every token, and `loss_scale` times the gradient of their sum up to the final norm.
  void forward(Context& ctx, MicroBatch& batch, float loss_scale);
  void backward(Context& ctx, MicroBatch& batch);

  // Losses only; nothing is kept.
  void evaluate(Context& ctx, MicroBatch& batch) const;

  // Appends `tokens` to the caches (one a layer) and returns the logits fp32 [batch, vocab] of each
  // sequence's last token, in ctx.work.
  Tensor decode(Context& ctx, BatchShape shape, const Tensor& tokens, std::vector<KvCache>& caches) const;

  // Logits fp32 [tokens, vocab] of a whole batch: for tests on small models.
  void logits(Context& ctx, BatchShape shape, const Tensor& tokens, const Tensor& out) const;

  const ModelSpec& spec() const { return spec_; }
  // Counts of the last forward and backward pass.
  const std::vector<LayerProfile>& profile() const { return profile_; }

 private:
  Tensor run_blocks_for_inference(Context& ctx, BatchShape shape, const Tensor& tokens,
                                  std::vector<KvCache>* caches) const;
  void backward_block(Context& ctx, MicroBatch& batch, std::size_t layer, const Tensor& dout, const Tensor& dx);
  static constexpr int kEmbedding = 0;
  static int unit_of_block(std::size_t layer) { return static_cast<int>(layer) + 1; }
  int head_unit() const { return unit_of_block(blocks_.size()); }
  void acquire_head(Context& ctx) const;
  void release_head(Context& ctx) const;

  ModelSpec spec_;
  DType compute_;
  RecomputePolicy recompute_;
  Buffer rope_buffer_;
  Tensor cos_sin_;  // fp32 [positions, head_dim]; undefined for learned positions
  Embedding embedding_;
  std::vector<Block> blocks_;
  Norm final_norm_;
  LmHead head_;
  std::vector<LayerProfile> profile_;
};

}  // namespace meshtrain
