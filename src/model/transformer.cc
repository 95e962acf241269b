#include "model/transformer.h"

#include <utility>

#include "model/rope_table.h"
#include "ops/transfer.h"

namespace meshtrain {
namespace {

// Adds what happened between its construction and destruction to one layer's counts.
class ForwardProfile {
 public:
  ForwardProfile(Context& ctx, LayerProfile& layer)
      : ctx_(ctx), layer_(layer), flops_(ctx.stream.total().flops), saved_(ctx.saved.used()) {}
  ~ForwardProfile() {
    layer_.forward_flops = ctx_.stream.total().flops - flops_;
    layer_.activation_bytes = ctx_.saved.used() - saved_;
  }
  ForwardProfile(const ForwardProfile&) = delete;
  ForwardProfile& operator=(const ForwardProfile&) = delete;

 private:
  Context& ctx_;
  LayerProfile& layer_;
  std::int64_t flops_;
  std::int64_t saved_;
};

class BackwardProfile {
 public:
  BackwardProfile(Context& ctx, LayerProfile& layer)
      : ctx_(ctx), layer_(layer), flops_(ctx.stream.total().flops) {}
  ~BackwardProfile() { layer_.backward_flops = ctx_.stream.total().flops - flops_; }
  BackwardProfile(const BackwardProfile&) = delete;
  BackwardProfile& operator=(const BackwardProfile&) = delete;

 private:
  Context& ctx_;
  LayerProfile& layer_;
  std::int64_t flops_;
};

}  // namespace

Transformer::Transformer(const ModelSpec& spec, ParamStore& store, Device& device, DType compute,
                         std::int64_t positions, RecomputePolicy recompute)
    : spec_(spec), compute_(compute), recompute_(recompute) {
  const bool learned_positions = spec.arch == Architecture::kGpt2;
  if (!learned_positions) {
    rope_buffer_ =
        device.allocate(positions * spec.head_dim * size_of(DType::kF32), MemoryCategory::kWorkspace);
    cos_sin_ = Tensor(rope_buffer_.data(), DType::kF32, {positions, spec.head_dim});
  }

  store.begin_unit("embed");
  const ParamRef table =
      store.declare({.name = "embed.tokens", .shape = {spec.vocab, spec.hidden}, .deviation = spec.init_std});
  ParamRef learned;
  if (learned_positions) {
    learned = store.declare(
        {.name = "embed.positions", .shape = {spec.context, spec.hidden}, .deviation = spec.init_std});
  }
  embedding_ = Embedding(table, learned);

  blocks_.reserve(static_cast<std::size_t>(spec.layers));
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const std::string name = fmt::format("layers.{}", i);
    store.begin_unit(name);
    blocks_.emplace_back(spec, store, name + ".", cos_sin_);
  }

  store.begin_unit("head");
  final_norm_ = make_norm(spec, store, "norm.");
  head_ =
      LmHead(spec.tie_embeddings
                 ? store.tie(table)
                 : store.declare(
                       {.name = "head.weight", .shape = {spec.vocab, spec.hidden}, .deviation = spec.init_std}),
             spec.vocab);

  for (std::size_t unit = 0; unit < store.units().size(); ++unit) {
    profile_.push_back(
        {.name = store.units()[unit].name, .parameters = store.count_of_unit(static_cast<int>(unit))});
  }
}

std::vector<int> Transformer::evaluation_order() const {
  std::vector<int> order;
  for (int unit = kEmbedding; unit <= head_unit(); ++unit) order.push_back(unit);
  if (spec_.tie_embeddings) order.push_back(kEmbedding);
  return order;
}

std::vector<int> Transformer::training_order() const {
  std::vector<int> order = evaluation_order();
  for (int unit = head_unit(); unit > kEmbedding; --unit) order.push_back(unit);
  if (!spec_.tie_embeddings) order.push_back(kEmbedding);
  return order;
}

void Transformer::acquire_head(Context& ctx) const {
  ctx.units.acquire(head_unit());
  if (spec_.tie_embeddings) ctx.units.acquire(kEmbedding);
}

void Transformer::release_head(Context& ctx) const {
  if (spec_.tie_embeddings) ctx.units.release(kEmbedding);
  ctx.units.release(head_unit());
}

void Transformer::upload_tables(Stream& stream) {
  if (!cos_sin_.defined() || stream.kind() == DeviceKind::kSim) return;
  const std::vector<float> table = rope_table(spec_, cos_sin_.dim(0));
  ops::copy_from_host(stream, table.data(), cos_sin_);
}

void Transformer::forward(Context& ctx, MicroBatch& batch, float loss_scale) {
  const Shape activation = {batch.shape.tokens(), spec_.hidden};
  batch.losses = ctx.saved.allocate(DType::kF32, {batch.shape.tokens()});
  batch.blocks.assign(blocks_.size(), {});

  Tensor x;
  {
    const ForwardProfile profile(ctx, profile_.front());
    x = ctx.saved.allocate(compute_, activation);
    ctx.units.acquire(kEmbedding);
    embedding_.forward(ctx, batch.shape, batch.tokens, 0, x);
    ctx.units.release(kEmbedding);
  }
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const ForwardProfile profile(ctx, profile_[i + 1]);
    const Tensor out = ctx.saved.allocate(compute_, activation);
    const Arena::Mark mark = ctx.saved.mark();
    const bool keep_all = recompute_ == RecomputePolicy::kNone;
    ctx.units.acquire(unit_of_block(i));
    blocks_[i].forward(ctx, batch.shape, x, keep_all, out, batch.blocks[i]);
    ctx.units.release(unit_of_block(i));
    if (recompute_ == RecomputePolicy::kFull) ctx.saved.release(mark);
    x = out;
  }
  const ForwardProfile profile(ctx, profile_.back());
  const Tensor y = ctx.saved.allocate(compute_, activation);
  acquire_head(ctx);
  final_norm_.forward(ctx, x, y, batch.final_norm, ctx.saved);
  batch.d_final = y;
  ctx.accumulate = batch.head_accumulates = ctx.units.begin_gradients(head_unit());
  head_.forward_backward(ctx, y, batch.targets, loss_scale, batch.losses, batch.d_final);
  release_head(ctx);
}

// Leaves the gradients of the block's weights accumulated and dx filled.
void Transformer::backward_block(Context& ctx, MicroBatch& batch, std::size_t layer, const Tensor& dout,
                                 const Tensor& dx) {
  const BackwardProfile profile(ctx, profile_[layer + 1]);
  const ArenaScope work_scope(ctx.work);
  const ArenaScope saved_scope(ctx.saved);
  Block::Saved& saved = batch.blocks[layer];
  const int unit = unit_of_block(layer);
  ctx.units.acquire(unit);
  if (recompute_ == RecomputePolicy::kFull) blocks_[layer].forward_again(ctx, batch.shape, saved.x, saved);
  ctx.accumulate = ctx.units.begin_gradients(unit);
  blocks_[layer].backward(ctx, batch.shape, saved, dout, dx);
  ctx.units.release(unit);
  ctx.units.end_gradients(unit);
}

void Transformer::backward(Context& ctx, MicroBatch& batch) {
  const ArenaScope scope(ctx.work);
  const Shape activation = {batch.shape.tokens(), spec_.hidden};
  Tensor dout = ctx.work.allocate(compute_, activation);
  Tensor dx = ctx.work.allocate(compute_, activation);
  {
    const BackwardProfile profile(ctx, profile_.back());
    ctx.units.acquire(head_unit());
    final_norm_.backward_input(ctx, batch.final_norm, batch.d_final, {}, dout);
    ctx.accumulate = batch.head_accumulates;
    final_norm_.backward_weight(ctx, batch.final_norm, batch.d_final);
    ctx.units.release(head_unit());
    ctx.units.end_gradients(head_unit());
  }
  for (std::size_t i = blocks_.size(); i-- > 0;) {
    backward_block(ctx, batch, i, dout, dx);
    std::swap(dout, dx);
  }
  const BackwardProfile profile(ctx, profile_.front());
  if (!spec_.tie_embeddings) ctx.units.acquire(kEmbedding);
  ctx.accumulate = ctx.units.begin_gradients(kEmbedding);
  embedding_.backward_weight(ctx, batch.shape, batch.tokens, dout);
  if (!spec_.tie_embeddings) ctx.units.release(kEmbedding);
  ctx.units.end_gradients(kEmbedding);
}

// The final norm's output [tokens, hidden], the head's units acquired. It lies in ctx.saved: so that neither
// arena is filled further than a training step fills it.
Tensor Transformer::run_blocks_for_inference(Context& ctx, BatchShape shape, const Tensor& tokens,
                                             std::vector<KvCache>* caches) const {
  const Shape activation = {shape.tokens(), spec_.hidden};
  Tensor x = ctx.saved.allocate(compute_, activation);
  Tensor out = ctx.saved.allocate(compute_, activation);
  ctx.units.acquire(kEmbedding);
  embedding_.forward(ctx, shape, tokens, caches != nullptr ? caches->front().used : 0, x);
  ctx.units.release(kEmbedding);
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const ArenaScope saved_scope(ctx.saved);
    Block::Saved saved;
    ctx.units.acquire(unit_of_block(i));
    if (caches != nullptr) {
      blocks_[i].forward_cached(ctx, shape, x, (*caches)[i], out);
    } else {
      blocks_[i].forward(ctx, shape, x, recompute_ == RecomputePolicy::kNone, out, saved);
    }
    ctx.units.release(unit_of_block(i));
    std::swap(x, out);
  }
  NormSaved saved;
  acquire_head(ctx);
  final_norm_.forward(ctx, x, out, saved, ctx.saved);
  return out;
}

void Transformer::evaluate(Context& ctx, MicroBatch& batch) const {
  batch.losses = ctx.saved.allocate(DType::kF32, {batch.shape.tokens()});
  const ArenaScope scope(ctx.saved);
  const Tensor y = run_blocks_for_inference(ctx, batch.shape, batch.tokens, nullptr);
  head_.forward(ctx, y, batch.targets, batch.losses);
  release_head(ctx);
}

Tensor Transformer::decode(Context& ctx, BatchShape shape, const Tensor& tokens,
                           std::vector<KvCache>& caches) const {
  const Tensor result = ctx.work.allocate(DType::kF32, {shape.batch, spec_.vocab});
  const ArenaScope work_scope(ctx.work);
  const ArenaScope saved_scope(ctx.saved);
  const Tensor y = run_blocks_for_inference(ctx, shape, tokens, &caches);
  const Tensor last = ctx.work.allocate(compute_, {shape.batch, spec_.hidden});
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    ops::copy(ctx.stream, y.slice(0, (b + 1) * shape.seq - 1, 1), last.slice(0, b, 1));
  }
  head_.logits(ctx, last, result);
  release_head(ctx);
  return result;
}

void Transformer::logits(Context& ctx, BatchShape shape, const Tensor& tokens, const Tensor& out) const {
  const ArenaScope scope(ctx.saved);
  head_.logits(ctx, run_blocks_for_inference(ctx, shape, tokens, nullptr), out);
  release_head(ctx);
}

}  // namespace meshtrain
