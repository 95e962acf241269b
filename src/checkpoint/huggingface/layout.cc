#include "checkpoint/huggingface/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace meshtrain {
namespace {

class Layout {
 public:
  explicit Layout(std::string_view prefix) : prefix_(prefix) {}

  void add(std::string_view name, const std::string& ours, const Shape& shape) {
    tensors_.push_back({.name = prefix_ + std::string(name), .shape = shape, .parts = {{ours, shape}}});
  }

  // A Conv1D with a bias; `parts` are the names of our linear layers, all with `out` outputs.
  void add_conv1d(const std::string& name, const std::vector<std::string>& parts, std::int64_t out,
                  std::int64_t in) {
    const auto all = out * static_cast<std::int64_t>(parts.size());
    HfTensor weight = {.name = prefix_ + name + ".weight", .shape = {in, all}, .transposed = true, .parts = {}};
    HfTensor bias = {.name = prefix_ + name + ".bias", .shape = {all}, .parts = {}};
    for (const std::string& part : parts) {
      weight.parts.push_back({part + ".weight", {out, in}});
      bias.parts.push_back({part + ".bias", {out}});
    }
    tensors_.push_back(std::move(weight));
    tensors_.push_back(std::move(bias));
  }

  void add_norm(const std::string& name, const std::string& ours, std::int64_t width, bool bias) {
    add(name + ".weight", ours + ".weight", {width});
    if (bias) add(name + ".bias", ours + ".bias", {width});
  }

  void add_head(const ModelSpec& spec) {
    const Shape shape = {spec.vocab, spec.hidden};
    const char* ours = spec.tie_embeddings ? "embed.tokens" : "head.weight";
    tensors_.push_back(
        {.name = "lm_head.weight", .shape = shape, .optional = spec.tie_embeddings, .parts = {{ours, shape}}});
  }

  std::vector<HfTensor> take() { return std::move(tensors_); }

 private:
  std::string prefix_;
  std::vector<HfTensor> tensors_;
};

void add_gpt2(Layout& layout, const ModelSpec& spec) {
  const std::int64_t hidden = spec.hidden;
  const std::int64_t width = spec.heads * spec.head_dim;
  layout.add("wte.weight", "embed.tokens", {spec.vocab, hidden});
  layout.add("wpe.weight", "embed.positions", {spec.context, hidden});
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const std::string theirs = fmt::format("h.{}.", i);
    const std::string ours = fmt::format("layers.{}.", i);
    layout.add_norm(theirs + "ln_1", ours + "norm1", hidden, true);
    layout.add_conv1d(theirs + "attn.c_attn", {ours + "attn.q", ours + "attn.k", ours + "attn.v"}, width,
                      hidden);
    layout.add_conv1d(theirs + "attn.c_proj", {ours + "attn.o"}, hidden, width);
    layout.add_norm(theirs + "ln_2", ours + "norm2", hidden, true);
    layout.add_conv1d(theirs + "mlp.c_fc", {ours + "mlp.up"}, spec.ffn_hidden, hidden);
    layout.add_conv1d(theirs + "mlp.c_proj", {ours + "mlp.down"}, hidden, spec.ffn_hidden);
  }
  layout.add_norm("ln_f", "norm", hidden, true);
}

void add_llama(Layout& layout, const ModelSpec& spec) {
  const std::int64_t hidden = spec.hidden;
  const std::int64_t q = spec.heads * spec.head_dim;
  const std::int64_t kv = spec.kv_heads * spec.head_dim;
  layout.add("embed_tokens.weight", "embed.tokens", {spec.vocab, hidden});
  for (std::int64_t i = 0; i < spec.layers; ++i) {
    const std::string theirs = fmt::format("layers.{}.", i);
    const std::string& ours = theirs;
    const auto add = [&](const std::string& name, const std::string& own, const Shape& shape) {
      layout.add(theirs + name, ours + own, shape);
    };
    layout.add_norm(theirs + "input_layernorm", ours + "norm1", hidden, false);
    for (const auto& [name, out] : {std::pair{"q", q}, std::pair{"k", kv}, std::pair{"v", kv}}) {
      add(fmt::format("self_attn.{}_proj.weight", name), fmt::format("attn.{}.weight", name), {out, hidden});
      if (spec.qkv_bias)
        add(fmt::format("self_attn.{}_proj.bias", name), fmt::format("attn.{}.bias", name), {out});
    }
    add("self_attn.o_proj.weight", "attn.o.weight", {hidden, q});
    if (spec.qk_norm) {
      add("self_attn.q_norm.weight", "attn.q_norm.weight", {spec.head_dim});
      add("self_attn.k_norm.weight", "attn.k_norm.weight", {spec.head_dim});
    }
    layout.add_norm(theirs + "post_attention_layernorm", ours + "norm2", hidden, false);
    add("mlp.gate_proj.weight", "mlp.gate.weight", {spec.ffn_hidden, hidden});
    add("mlp.up_proj.weight", "mlp.up.weight", {spec.ffn_hidden, hidden});
    add("mlp.down_proj.weight", "mlp.down.weight", {hidden, spec.ffn_hidden});
  }
  layout.add_norm("norm", "norm", hidden, false);
}

}  // namespace

std::vector<HfTensor> hf_tensors(const ModelSpec& spec, std::string_view prefix) {
  Layout layout(prefix);
  if (spec.arch == Architecture::kGpt2) {
    add_gpt2(layout, spec);
  } else {
    add_llama(layout, spec);
  }
  layout.add_head(spec);
  return layout.take();
}

std::string_view hf_prefix(Architecture arch) {
  return arch == Architecture::kGpt2 ? "transformer." : "model.";
}

std::string_view hf_embedding_name(Architecture arch) {
  return arch == Architecture::kGpt2 ? "wte.weight" : "embed_tokens.weight";
}

bool is_hf_buffer(std::string_view name) {
  constexpr std::array<std::string_view, 3> kEnds = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace meshtrain
