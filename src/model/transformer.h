// A decoder-only language model: embedding, blocks, final norm and head; or the pieces of it that one pipeline
// stage has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/block.h"
#include "model/embedding.h"
#include "model/lm_head.h"
#include "model/piece.h"
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

struct TransformerOptions {
  DType compute = DType::kF32;
  std::int64_t positions = 0;  // that are ever seen
  RecomputePolicy recompute = RecomputePolicy::kNone;
  TensorPart tensor{};
  // Whether backward_weight is a step of its own: backward then leaves what it needs in ctx.kept.
  bool split_backward = false;
  std::vector<ModelPiece> pieces = {};  // empty: one, the whole model
};

class Transformer {
 public:
  // One micro-batch in one piece, between its forward and its backward pass. Tensors lie in the context's
  // arenas.
  struct MicroBatch {
    BatchShape shape;
    Tensor tokens;   // int32 [tokens]: read by a piece with the embedding, in both passes
    Tensor targets;  // int32 [tokens]; ops::kIgnoredTarget masks: read with the head, in the backward pass
    Tensor losses;   // fp32 [tokens], with the head; filled by backward, or evaluate
    // Where forward leaves what the backward pass needs: an arena for each block of the piece, and one for the
    // head if it has it. Empty: all in ctx.saved.
    std::vector<Arena*> arenas;

    std::vector<Block::Saved> blocks;
    NormSaved final_norm;
    Tensor head_in;  // the final norm's output, and then its gradient
    // Where the backward pass is split:
    std::vector<Block::Gradients> gradients;
    Tensor d_embedding;
  };

  // Declares the parameters of the pieces. The rotary table, if any, is allocated on `device`; upload_tables
  // fills it. Units of the store are the embedding, the blocks and the head of each piece, in this order; a
  // head that shares the table of an embedding which lies elsewhere has a copy of the embedding's unit at the
  // end.
  Transformer(const ModelSpec& spec, ParamStore& store, Device& device, const TransformerOptions& options);
  Transformer(const Transformer&) = delete;
  Transformer& operator=(const Transformer&) = delete;

  void upload_tables(Stream& stream);

  // Units as the forward or the backward pass of a piece acquires them, its weight gradients where they are
  // apart, or an evaluation. Each unit is acquired once a pass, whatever its layers read in it: what a strategy
  // sends does not hang on that. A tied head is the second use of the embedding, whose backward pass then needs
  // none.
  enum class Pass : std::uint8_t { kForward, kBackward, kBackwardWeight, kEvaluation };
  std::vector<int> acquires_of(Pass pass, int piece) const;

  // Activations between pieces are [rows, hidden] of the compute type, in the outer layout. `in` is not read by
  // a piece with the embedding, `out` not written by one with the head.
  void forward(Context& ctx, int piece, MicroBatch& batch, const Tensor& in, const Tensor& out);
  // From d_out, the gradient of forward's `out`, or from the losses, times loss_scale; leaves that of `in` in
  // d_in. Weight gradients too, unless they are apart.
  void backward(Context& ctx, int piece, MicroBatch& batch, float loss_scale, const Tensor& d_out,
                const Tensor& d_in);
  void backward_weight(Context& ctx, int piece, MicroBatch& batch);

  // Forward, with losses and without a backward pass; nothing is kept.
  void evaluate(Context& ctx, int piece, MicroBatch& batch, const Tensor& in, const Tensor& out) const;

  // --- Of a whole model, on one rank. ---
  // Appends `tokens` to the caches (one a layer) and returns the logits fp32 [batch, vocab] of each
  // sequence's last token, in ctx.work.
  Tensor decode(Context& ctx, BatchShape shape, const Tensor& tokens, std::vector<KvCache>& caches) const;
  // Logits fp32 [tokens, vocab] of a whole batch: for tests on small models.
  void logits(Context& ctx, BatchShape shape, const Tensor& tokens, const Tensor& out) const;

  const ModelSpec& spec() const { return spec_; }
  int pieces() const { return static_cast<int>(pieces_.size()); }
  // The unit of the embedding that is trained here, and of a copy; -1: not here.
  int embedding_unit() const;
  int copy_unit() const;
  bool has_head() const { return pieces_.back().layers.head; }
  // Counts of the last forward and backward pass, by unit.
  const std::vector<LayerProfile>& profile() const { return profile_; }

 private:
  struct Piece {
    ModelPiece layers;
    int first_unit = 0;
    std::vector<Block> blocks;
    int unit_of_block(std::size_t block) const {
      return first_unit + (layers.embedding ? 1 : 0) + static_cast<int>(block);
    }
    int head_unit() const { return unit_of_block(blocks.size()); }
  };
  Piece& at(int piece) { return pieces_[static_cast<std::size_t>(piece)]; }
  const Piece& at(int piece) const { return pieces_[static_cast<std::size_t>(piece)]; }
  LayerProfile& profile_of(int unit) { return profile_[static_cast<std::size_t>(unit)]; }
  Shape activation(const Context& ctx, BatchShape shape) const {
    return {ctx.tensor.outer_rows(shape.tokens()), spec_.hidden};
  }

  ParamRef declare_embedding(ParamStore& store);
  void declare_head(ParamStore& store, ParamRef table);
  void forward_norm(Context& ctx, const Piece& piece, MicroBatch& batch, const Tensor& x);
  void acquire_head(Context& ctx, const Piece& piece) const;
  void release_head(Context& ctx, const Piece& piece) const;
  void backward_head(Context& ctx, const Piece& piece, MicroBatch& batch, float loss_scale, const Tensor& dout);
  void backward_block(Context& ctx, const Piece& piece, MicroBatch& batch, std::size_t block,
                      const Tensor& dout, const Tensor& dx);
  void backward_embedding(Context& ctx, const Piece& piece, const MicroBatch& batch, const Tensor& dout);
  void embed(Context& ctx, const Piece& piece, BatchShape shape, const Tensor& tokens,
             std::int64_t first_position, const Tensor& x) const;
  Tensor run_blocks(Context& ctx, const Piece& piece, BatchShape shape, Tensor x, Tensor out,
                    std::vector<KvCache>* caches) const;
  Tensor run_for_inference(Context& ctx, BatchShape shape, const Tensor& tokens,
                           std::vector<KvCache>* caches) const;

  ModelSpec spec_;
  TransformerOptions options_;
  Buffer rope_buffer_;
  Tensor cos_sin_;  // fp32 [positions, head_dim]; undefined for learned positions
  Embedding embedding_;
  Norm final_norm_;
  LmHead head_;
  int table_unit_ = -1;  // of a tied head
  bool split_table_ = false;
  std::vector<Piece> pieces_;
  std::vector<LayerProfile> profile_;
};

}  // namespace meshtrain
