#include "model/spec.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/nearest.h"

namespace meshtrain {
namespace {

using Preset = std::pair<std::string_view, ModelSpec>;

// Radford et al. 2019, table 2; 50257 tokens, 1024 positions.
ModelSpec gpt2(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  return {.arch = Architecture::kGpt2,
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = hidden / heads,
          .ffn_hidden = 4 * hidden,
          .vocab = 50257,
          .context = 1024,
          .tie_embeddings = true};
}

// Llama 3 (Dubey et al. 2024, table 3).
ModelSpec llama3(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn_hidden) {
  return {.arch = Architecture::kLlama,
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = 8,
          .head_dim = hidden / heads,
          .ffn_hidden = ffn_hidden,
          .vocab = 128256,
          .context = 8192,
          .rope_theta = 500000.0};
}

// 3.1 and 3.2: the context grows to 128 Ki by scaling the low frequencies.
ModelSpec long_context(ModelSpec spec, double factor) {
  spec.context = 131072;
  spec.rope_scaling.factor = factor;
  return spec;
}

ModelSpec llama32_1b() {
  ModelSpec spec = long_context(llama3(16, 2048, 32, 8192), 32.0);
  spec.tie_embeddings = true;
  return spec;
}

ModelSpec smollm2_135m() {
  return {.arch = Architecture::kLlama,
          .layers = 30,
          .hidden = 576,
          .heads = 9,
          .kv_heads = 3,
          .head_dim = 64,
          .ffn_hidden = 1536,
          .vocab = 49152,
          .context = 8192,
          .tie_embeddings = true,
          .rope_theta = 100000.0,
          .init_std = 1.0 / 24.0};  // 1 / sqrt(hidden)
}

// Qwen2.5 and Qwen3 share everything here but their shape and the QKV bias / the norm of queries and keys.
ModelSpec qwen(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads,
               std::int64_t head_dim, std::int64_t ffn_hidden, std::int64_t context) {
  return {.arch = Architecture::kLlama,
          .layers = layers,
          .hidden = hidden,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .ffn_hidden = ffn_hidden,
          .vocab = 151936,
          .context = context,
          .tie_embeddings = true,
          .norm_eps = 1e-6,
          .rope_theta = 1000000.0};
}

ModelSpec qwen25_05b() {
  ModelSpec spec = qwen(24, 896, 14, 2, 64, 4864, 32768);
  spec.qkv_bias = true;
  return spec;
}

ModelSpec qwen3_06b() {
  ModelSpec spec = qwen(28, 1024, 16, 8, 128, 3072, 40960);
  spec.qk_norm = true;
  return spec;
}

// Shapes of our own that train in seconds or minutes on a laptop; the vocabulary is the tokenizer's.
ModelSpec small(ModelSpec spec, std::int64_t context) {
  spec.vocab = 0;
  spec.context = context;
  return spec;
}

ModelSpec small_llama(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t kv_heads,
                      std::int64_t ffn_hidden, std::int64_t context) {
  ModelSpec spec = small(llama3(layers, hidden, heads, ffn_hidden), context);
  spec.kv_heads = kv_heads;
  spec.tie_embeddings = true;
  spec.rope_theta = 10000.0;
  return spec;
}

const std::array<Preset, 16>& presets() {
  static const std::array<Preset, 16> kPresets = {{
      {"gpt2-tiny", small(gpt2(2, 64, 4), 256)},
      {"gpt2-124m", gpt2(12, 768, 12)},
      {"gpt2-355m", gpt2(24, 1024, 16)},
      {"gpt2-774m", gpt2(36, 1280, 20)},
      {"gpt2-1558m", gpt2(48, 1600, 25)},
      {"llama-tiny", small_llama(2, 64, 4, 2, 192, 256)},
      {"llama-small", small_llama(6, 256, 4, 2, 704, 512)},
      {"smollm2-135m", smollm2_135m()},
      {"qwen2.5-0.5b", qwen25_05b()},
      {"qwen3-0.6b", qwen3_06b()},
      {"llama-3.2-1b", llama32_1b()},
      {"llama-3-8b", llama3(32, 4096, 32, 14336)},
      {"llama-3-70b", llama3(80, 8192, 64, 28672)},
      {"llama-3.1-8b", long_context(llama3(32, 4096, 32, 14336), 8.0)},
      {"llama-3.1-70b", long_context(llama3(80, 8192, 64, 28672), 8.0)},
      {"llama-3.1-405b", long_context(llama3(126, 16384, 128, 53248), 8.0)},
  }};
  return kPresets;
}

// In double for validate(): there no size has been bounded yet.
template <class Number>
Number count_parameters(const ModelSpec& spec) {
  const auto hidden = static_cast<Number>(spec.hidden);
  const auto head_dim = static_cast<Number>(spec.head_dim);
  const Number q_width = static_cast<Number>(spec.heads) * head_dim;
  const Number kv_width = static_cast<Number>(spec.kv_heads) * head_dim;
  const auto ffn = static_cast<Number>(spec.ffn_hidden);
  const auto vocab = static_cast<Number>(spec.vocab);

  Number layer = hidden * (q_width + 2 * kv_width) + q_width * hidden;
  Number outside = vocab * hidden * static_cast<Number>(spec.tie_embeddings ? 1 : 2);
  if (spec.arch == Architecture::kGpt2) {
    layer += q_width + 2 * kv_width + hidden;                            // attention biases
    layer += 2 * hidden * ffn + ffn + hidden;                            // MLP
    layer += 4 * hidden;                                                 // two LayerNorms
    outside += static_cast<Number>(spec.context) * hidden + 2 * hidden;  // positions, last LayerNorm
  } else {
    layer += 3 * hidden * ffn + 2 * hidden;  // SwiGLU, two RMSNorms
    if (spec.qkv_bias) layer += q_width + 2 * kv_width;
    if (spec.qk_norm) layer += 2 * head_dim;
    outside += hidden;
  }
  return static_cast<Number>(spec.layers) * layer + outside;
}

void require_size(std::string_view key, std::int64_t value, std::int64_t largest) {
  if (value < 1 || value > largest) {
    throw_user_error("model.{} = {} is not possible: it must be between 1 and {}.", key, value, largest);
  }
}

constexpr std::int64_t kMostHidden = 1 << 24;

void validate_sizes(const ModelSpec& spec) {
  require_size("layers", spec.layers, 100000);
  require_size("hidden", spec.hidden, kMostHidden);
  require_size("heads", spec.heads, 1 << 20);
  require_size("kv_heads", spec.kv_heads, 1 << 20);
  require_size("head_dim", spec.head_dim, 1 << 20);
  require_size("ffn_hidden", spec.ffn_hidden, 1 << 26);
  require_size("vocab", spec.vocab, 1 << 30);
  require_size("context", spec.context, 1 << 30);
  constexpr double kMostParameters = 1e15;
  const auto parameters = count_parameters<double>(spec);
  if (parameters > kMostParameters) {
    throw_user_error(
        "model.layers = {}, model.hidden = {}, model.ffn_hidden = {} and model.vocab = {} give {:.2g} "
        "parameters, more than any machine holds; meshtrain stops at {:.0g}. Make one of them smaller.",
        spec.layers, spec.hidden, spec.ffn_hidden, spec.vocab, parameters, kMostParameters);
  }
}

void validate_heads(const ModelSpec& spec) {
  if (spec.heads % spec.kv_heads != 0) {
    throw_user_error(
        "model.kv_heads = {} does not divide model.heads = {}: every key-value head serves the same number of "
        "query heads. Use {}, or change model.heads.",
        spec.kv_heads, spec.heads, divisors_around(spec.heads, spec.kv_heads));
  }
  if (spec.arch == Architecture::kGpt2 && spec.kv_heads != spec.heads) {
    throw_user_error(
        "model.kv_heads = {} with model.arch = \"gpt2\": GPT-2 has no grouped-query attention. Leave "
        "model.kv_heads out, set it to model.heads = {}, or use model.arch = \"llama\".",
        spec.kv_heads, spec.heads);
  }
  // Whoever gives head_dim may choose heads · head_dim ≠ hidden; the quotient must be whole otherwise.
  if (spec.arch == Architecture::kLlama && spec.head_dim % 2 != 0) {
    throw_user_error(
        "model.head_dim = {} is odd, but rotary positions turn pairs of elements. Set model.head_dim to {} or "
        "{}, or choose model.heads so that model.hidden / model.heads is even.",
        spec.head_dim, std::max<std::int64_t>(2, spec.head_dim - 1), spec.head_dim + 1);
  }
}

void require_positive(std::string_view key, double value) {
  if (!(value > 0.0) || !std::isfinite(value)) {
    throw_user_error("model.{} = {} is not possible: it must be a finite number above 0.", key, value);
  }
}

void validate_numbers(const ModelSpec& spec) {
  require_positive("norm_eps", spec.norm_eps);
  if (!(spec.init_std >= 0.0) || !std::isfinite(spec.init_std)) {
    throw_user_error(
        "model.init_std = {} is not possible: it must be a finite number, 0 or above (0.02 is usual).",
        spec.init_std);
  }
  if (spec.arch == Architecture::kGpt2) {
    for (const auto& [key, set] : {std::pair{"qkv_bias", spec.qkv_bias}, std::pair{"qk_norm", spec.qk_norm},
                                   std::pair{"rope_scaling_factor", spec.rope_scaling.factor != 1.0}}) {
      if (set) {
        throw_user_error(
            "model.{} is set, but model.arch = \"gpt2\" has no such part. Remove it or use \"llama\".", key);
      }
    }
    return;
  }
  const RopeScaling& scaling = spec.rope_scaling;
  require_positive("rope_theta", spec.rope_theta);
  if (!(scaling.factor >= 1.0) || !std::isfinite(scaling.factor)) {
    throw_user_error("model.rope_scaling_factor = {} is not possible: use 1 for none, or a factor above 1.",
                     scaling.factor);
  }
  require_positive("rope_low_freq_factor", scaling.low_freq_factor);
  require_positive("rope_high_freq_factor", scaling.high_freq_factor);
  if (scaling.high_freq_factor <= scaling.low_freq_factor) {
    throw_user_error(
        "model.rope_high_freq_factor = {} must be above model.rope_low_freq_factor = {} (Llama 3.1 uses 4 and "
        "1).",
        scaling.high_freq_factor, scaling.low_freq_factor);
  }
  require_size("rope_original_context", scaling.original_context, 1 << 30);
}

}  // namespace

std::string_view name_of(Architecture architecture) {
  return architecture == Architecture::kGpt2 ? "gpt2" : "llama";
}

const ModelSpec& preset(std::string_view name) {
  for (const auto& [known, spec] : presets()) {
    if (known == name) return spec;
  }
  const std::vector<std::string> names = preset_names();
  throw_user_error("model.preset = \"{}\" is not known{}. Presets: {}.", name, nearest_hint(name, names),
                   fmt::join(names, ", "));
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, spec] : presets()) names.emplace_back(name);
  return names;
}

std::int64_t parameter_count(const ModelSpec& spec) {
  return count_parameters<std::int64_t>(spec);
}

void validate(const ModelSpec& spec) {
  // Before anything else: the usual cause of a missing head_dim is a head count that does not divide.
  if (spec.hidden > 0) require_size("hidden", spec.hidden, kMostHidden);
  if (spec.head_dim == 0 && spec.heads > 0 && spec.hidden > 0 && spec.hidden % spec.heads != 0) {
    throw_user_error(
        "model.heads = {} does not divide model.hidden = {}. Use {} heads, or say how wide a head is with "
        "model.head_dim.",
        spec.heads, spec.hidden, divisors_around(spec.hidden, spec.heads));
  }
  validate_sizes(spec);
  validate_heads(spec);
  validate_numbers(spec);
}

}  // namespace meshtrain
