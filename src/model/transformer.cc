#include "model/transformer.h"

#include "model/cut.h"
#include "model/rope_table.h"
#include "ops/transfer.h"

namespace meshtrain {
namespace {

// Adds what happened between its construction and destruction to one layer's counts. The layer saves in one
// arena, and its output lies in one, perhaps the same.
class ForwardProfile {
 public:
  ForwardProfile(const Context& ctx, LayerProfile& layer, const Arena& saved, const Arena& output)
      : stream_(ctx.stream),
        layer_(layer),
        saved_(saved),
        output_(output),
        flops_(stream_.total().flops),
        used_(used()) {}
  ~ForwardProfile() {
    layer_.forward_flops = stream_.total().flops - flops_;
    layer_.activation_bytes = used() - used_;
  }
  ForwardProfile(const ForwardProfile&) = delete;
  ForwardProfile& operator=(const ForwardProfile&) = delete;

 private:
  std::int64_t used() const { return saved_.used() + (&output_ == &saved_ ? 0 : output_.used()); }

  const Stream& stream_;
  LayerProfile& layer_;
  const Arena& saved_;
  const Arena& output_;
  std::int64_t flops_;
  std::int64_t used_;
};

class BackwardProfile {
 public:
  // `before`: flops of the layer's backward pass that were counted already.
  BackwardProfile(Context& ctx, LayerProfile& layer, std::int64_t before = 0)
      : ctx_(ctx), layer_(layer), flops_(ctx.stream.total().flops - before) {}
  ~BackwardProfile() { layer_.backward_flops = ctx_.stream.total().flops - flops_; }
  BackwardProfile(const BackwardProfile&) = delete;
  BackwardProfile& operator=(const BackwardProfile&) = delete;

 private:
  Context& ctx_;
  LayerProfile& layer_;
  std::int64_t flops_;
};

// Of block `index` of the piece; past the last block, of the head.
Arena& arena_of(const Context& ctx, const Transformer::MicroBatch& batch, std::size_t index) {
  return batch.arenas.empty() ? ctx.saved : *batch.arenas.at(index);
}

std::vector<ModelPiece> pieces_or_whole(const ModelSpec& spec, const std::vector<ModelPiece>& pieces) {
  return pieces.empty() ? std::vector<ModelPiece>{{.first_block = 0, .blocks = spec.layers}} : pieces;
}

}  // namespace

Transformer::Transformer(const ModelSpec& spec, ParamStore& store, Device& device,
                         const TransformerOptions& options)
    : spec_(spec), options_(options) {
  if (spec.arch == Architecture::kLlama) {
    const Shape shape = {options.positions, spec.head_dim};
    rope_buffer_ = device.allocate(shape.numel() * size_of(DType::kF32), MemoryCategory::kWorkspace);
    cos_sin_ = Tensor(rope_buffer_.data(), DType::kF32, shape);
  }
  ParamRef table;
  for (const ModelPiece& layers : pieces_or_whole(spec, options.pieces)) {
    Piece& piece = pieces_.emplace_back();
    piece.layers = layers;
    piece.first_unit = static_cast<int>(store.units().size());
    if (layers.embedding) {
      table_unit_ = piece.first_unit;
      store.begin_unit("embed");
      table = declare_embedding(store);
    }
    piece.blocks.reserve(static_cast<std::size_t>(layers.blocks));
    for (std::int64_t i = layers.first_block; i < layers.first_block + layers.blocks; ++i) {
      const std::string name = fmt::format("layers.{}", i);
      store.begin_unit(name);
      piece.blocks.emplace_back(spec, store, name + ".", cos_sin_, options.tensor);
    }
    if (layers.head) declare_head(store, table);
  }
  for (std::size_t unit = 0; unit < store.units().size(); ++unit) {
    profile_.push_back(
        {.name = store.units()[unit].name, .parameters = store.count_of_unit(static_cast<int>(unit))});
  }
}

// Returns the table.
ParamRef Transformer::declare_embedding(ParamStore& store) {
  const ParamRef table = store.declare(vocabulary_matrix(spec_, "embed.tokens", options_.tensor));
  ParamRef positions;
  if (spec_.arch == Architecture::kGpt2) {
    // Every tensor-parallel rank sees the gradients of all tokens.
    positions = store.declare(
        copied({.name = "embed.positions", .shape = {spec_.context, spec_.hidden}, .deviation = spec_.init_std},
               options_.tensor, /*partial=*/false));
  }
  embedding_ = Embedding(table, positions, options_.tensor);
  return table;
}

// `table`: of the embedding, where a piece here has it.
void Transformer::declare_head(ParamStore& store, ParamRef table) {
  const auto head_unit = static_cast<int>(store.units().size());
  store.begin_unit("head");
  final_norm_ = make_norm(spec_, store, "norm.", options_.tensor);
  if (!spec_.tie_embeddings) {
    head_ = LmHead(store.declare(vocabulary_matrix(spec_, "head.weight", options_.tensor)), spec_.vocab,
                   options_.tensor);
    return;
  }
  if (!table.defined()) {
    split_table_ = true;
    table_unit_ = head_unit + 1;
    store.begin_unit("embed", /*copy=*/true);
    table = declare_embedding(store);
  }
  head_ = LmHead(store.tie(table, head_unit), spec_.vocab, options_.tensor);
}

int Transformer::embedding_unit() const {
  return pieces_.front().layers.embedding ? pieces_.front().first_unit : -1;
}

int Transformer::copy_unit() const {
  return split_table_ ? table_unit_ : -1;
}

std::vector<int> Transformer::acquires_of(Pass pass, int index) const {
  const Piece& piece = at(index);
  const int end = piece.head_unit() + (piece.layers.head ? 1 : 0);
  std::vector<int> units;
  if (pass == Pass::kForward || pass == Pass::kEvaluation) {
    for (int unit = piece.first_unit; unit < end; ++unit) units.push_back(unit);
  }
  if (pass == Pass::kBackward) {
    if (piece.layers.head) units.push_back(piece.head_unit());
    if (piece.layers.head && spec_.tie_embeddings) units.push_back(table_unit_);
    for (std::size_t i = piece.blocks.size(); i-- > 0;) units.push_back(piece.unit_of_block(i));
  }
  if (pass == Pass::kEvaluation && piece.layers.head && spec_.tie_embeddings) units.push_back(table_unit_);
  const Pass last = options_.split_backward ? Pass::kBackwardWeight : Pass::kBackward;
  if (pass == last && piece.layers.embedding && !spec_.tie_embeddings) units.push_back(piece.first_unit);
  return units;
}

void Transformer::upload_tables(Stream& stream) {
  if (!cos_sin_.defined() || stream.kind() == DeviceKind::kSim) return;
  const std::vector<float> table = rope_table(spec_, cos_sin_.dim(0));
  ops::copy_from_host(stream, table.data(), cos_sin_);
}

// --- Forward. ---

void Transformer::forward(Context& ctx, int index, MicroBatch& batch, const Tensor& in, const Tensor& out) {
  Piece& piece = at(index);
  const Shape shape = activation(ctx, batch.shape);
  const bool ends_here = piece.layers.head;
  batch.blocks.assign(piece.blocks.size(), {});

  // The input of a layer lies with what the layer saves.
  Tensor x;
  Arena& first = arena_of(ctx, batch, 0);
  const bool embedding_alone = piece.blocks.empty() && !ends_here;
  if (piece.layers.embedding) {
    const ForwardProfile profile(ctx, profile_of(piece.first_unit), first, first);
    x = embedding_alone ? out : first.allocate(options_.compute, shape);
    embed(ctx, piece, batch.shape, batch.tokens, 0, x);
  } else {
    x = first.allocate(options_.compute, shape);
    ops::copy(ctx.stream, in, x);
  }
  for (std::size_t i = 0; i < piece.blocks.size(); ++i) {
    const int unit = piece.unit_of_block(i);
    const bool sent = i + 1 == piece.blocks.size() && !ends_here;
    Arena& arena = arena_of(ctx, batch, i);
    Arena& next = sent ? arena : arena_of(ctx, batch, i + 1);
    const ForwardProfile profile(ctx, profile_of(unit), arena, next);
    const Tensor y = sent ? out : next.allocate(options_.compute, shape);
    ctx.units.acquire(unit);
    const bool full = options_.recompute == RecomputePolicy::kFull;
    Context in_place = ctx.saving_in(full ? ctx.recomputed : arena);
    if (full) {
      const ArenaScope scope(ctx.recomputed);
      piece.blocks[i].forward(in_place, batch.shape, x, /*keep_all=*/true, y, batch.blocks[i]);
    } else {
      piece.blocks[i].forward(in_place, batch.shape, x, options_.recompute == RecomputePolicy::kNone, y,
                              batch.blocks[i]);
    }
    ctx.units.release(unit);
    x = y;
  }
  if (ends_here) forward_norm(ctx, piece, batch, x);
}

// Of the head: its own forward pass is part of its backward pass.
void Transformer::forward_norm(Context& ctx, const Piece& piece, MicroBatch& batch, const Tensor& x) {
  Arena& arena = arena_of(ctx, batch, piece.blocks.size());
  batch.losses = arena.allocate(DType::kF32, {batch.shape.tokens()});
  const ForwardProfile profile(ctx, profile_of(piece.head_unit()), arena, arena);
  batch.head_in = arena.allocate(options_.compute, x.shape());
  ctx.units.acquire(piece.head_unit());
  final_norm_.forward(ctx, x, batch.head_in, batch.final_norm, arena);
  ctx.units.release(piece.head_unit());
}

// --- Backward. ---

void Transformer::acquire_head(Context& ctx, const Piece& piece) const {
  ctx.units.acquire(piece.head_unit());
  if (spec_.tie_embeddings) ctx.units.acquire(table_unit_);
}

void Transformer::release_head(Context& ctx, const Piece& piece) const {
  if (spec_.tie_embeddings) ctx.units.release(table_unit_);
  ctx.units.release(piece.head_unit());
}

void Transformer::backward(Context& ctx, int index, MicroBatch& batch, float loss_scale, const Tensor& d_out,
                           const Tensor& d_in) {
  const Piece& piece = at(index);
  const ArenaScope scope(ctx.work);
  const Shape shape = activation(ctx, batch.shape);
  // Without a split two gradients are enough: a block's input and output. With it, all of them are kept.
  const bool split = options_.split_backward;
  Tensor two[2];
  if (!split) {
    for (Tensor& gradient : two) gradient = ctx.work.allocate(options_.compute, shape);
  }
  std::size_t next = 0;
  const auto gradient = [&] { return split ? ctx.kept.allocate(options_.compute, shape) : two[next++ % 2]; };
  const auto gradient_of_input = [&](bool first) {
    return first && !piece.layers.embedding ? d_in : gradient();
  };

  Tensor dout = d_out;
  if (piece.layers.head) {
    dout = gradient_of_input(piece.blocks.empty());
    backward_head(ctx, piece, batch, loss_scale, dout);
  } else if (split) {
    dout = gradient();
    ops::copy(ctx.stream, d_out, dout);
  }
  batch.gradients.assign(split ? piece.blocks.size() : 0, {});
  for (std::size_t i = piece.blocks.size(); i-- > 0;) {
    const Tensor dx = gradient_of_input(i == 0);
    backward_block(ctx, piece, batch, i, dout, dx);
    dout = dx;
  }
  if (!piece.layers.embedding) return;
  if (split) {
    batch.d_embedding = dout;
  } else {
    backward_embedding(ctx, piece, batch, dout);
  }
}

void Transformer::backward_head(Context& ctx, const Piece& piece, MicroBatch& batch, float loss_scale,
                                const Tensor& dout) {
  const int unit = piece.head_unit();
  const BackwardProfile profile(ctx, profile_of(unit));
  acquire_head(ctx, piece);
  const bool accumulate = ctx.units.begin_gradients(unit);
  ctx.accumulate = spec_.tie_embeddings ? ctx.units.begin_tied_gradients() : accumulate;
  head_.forward_backward(ctx, batch.head_in, batch.targets, loss_scale, batch.losses, batch.head_in);
  if (spec_.tie_embeddings) ctx.units.end_tied_gradients();
  ctx.accumulate = accumulate;
  final_norm_.backward_input(ctx, batch.final_norm, batch.head_in, {}, dout);
  final_norm_.backward_weight(ctx, batch.final_norm, batch.head_in);
  release_head(ctx, piece);
  ctx.units.end_gradients(unit);
}

// Leaves dx filled, and the gradients of the block's weights accumulated unless they are apart.
void Transformer::backward_block(Context& ctx, const Piece& piece, MicroBatch& batch, std::size_t block,
                                 const Tensor& dout, const Tensor& dx) {
  const int unit = piece.unit_of_block(block);
  const bool split = options_.split_backward;
  const BackwardProfile profile(ctx, profile_of(unit));
  const ArenaScope work_scope(ctx.work);
  const Arena::Mark mark = ctx.recomputed.mark();
  Block::Saved& saved = batch.blocks[block];
  ctx.units.acquire(unit);
  if (options_.recompute == RecomputePolicy::kFull) {
    Context again = ctx.saving_in(ctx.recomputed);
    piece.blocks[block].forward_again(again, batch.shape, saved.x, saved);
  }
  if (split) {
    piece.blocks[block].backward_input(ctx, batch.shape, saved, dout, dx, batch.gradients[block]);
    ctx.units.release(unit);
    return;
  }
  ctx.accumulate = ctx.units.begin_gradients(unit);
  piece.blocks[block].backward(ctx, batch.shape, saved, dout, dx);
  ctx.recomputed.release(mark);
  ctx.units.release(unit);
  ctx.units.end_gradients(unit);
}

void Transformer::backward_weight(Context& ctx, int index, MicroBatch& batch) {
  const Piece& piece = at(index);
  const ArenaScope scope(ctx.work);
  for (std::size_t i = piece.blocks.size(); i-- > 0;) {
    const int unit = piece.unit_of_block(i);
    LayerProfile& layer = profile_of(unit);
    const BackwardProfile profile(ctx, layer, layer.backward_flops);
    ctx.accumulate = ctx.units.begin_gradients(unit);
    piece.blocks[i].backward_weight(ctx, batch.shape, batch.blocks[i], batch.gradients[i]);
    ctx.units.end_gradients(unit);
  }
  if (piece.layers.embedding) backward_embedding(ctx, piece, batch, batch.d_embedding);
}

void Transformer::backward_embedding(Context& ctx, const Piece& piece, const MicroBatch& batch,
                                     const Tensor& dout) {
  const int unit = piece.first_unit;
  const BackwardProfile profile(ctx, profile_of(unit));
  if (!spec_.tie_embeddings) ctx.units.acquire(unit);
  ctx.accumulate = ctx.units.begin_gradients(unit);
  embedding_.backward_weight(ctx, batch.shape, batch.tokens, dout);
  if (!spec_.tie_embeddings) ctx.units.release(unit);
  ctx.units.end_gradients(unit);
}

}  // namespace meshtrain
