#include "model/spec_json.h"

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace meshtrain {
namespace {

// Calls visit(key, member) for every member but arch: the one list that both directions follow.
template <class Spec, class Visit>
void visit_members(Spec& spec, Visit visit) {
  visit("layers", spec.layers);
  visit("hidden", spec.hidden);
  visit("heads", spec.heads);
  visit("kv_heads", spec.kv_heads);
  visit("head_dim", spec.head_dim);
  visit("ffn_hidden", spec.ffn_hidden);
  visit("vocab", spec.vocab);
  visit("context", spec.context);
  visit("tie_embeddings", spec.tie_embeddings);
  visit("norm_eps", spec.norm_eps);
  visit("rope_theta", spec.rope_theta);
  visit("rope_scaling_factor", spec.rope_scaling.factor);
  visit("rope_low_freq_factor", spec.rope_scaling.low_freq_factor);
  visit("rope_high_freq_factor", spec.rope_scaling.high_freq_factor);
  visit("rope_original_context", spec.rope_scaling.original_context);
  visit("qkv_bias", spec.qkv_bias);
  visit("qk_norm", spec.qk_norm);
  visit("init_std", spec.init_std);
}

bool holds(const nlohmann::json& value, const bool&) {
  return value.is_boolean();
}
bool holds(const nlohmann::json& value, const double&) {
  return value.is_number();
}
// Whole numbers within 64 bits; an unsigned one beyond them must not wrap.
bool holds(const nlohmann::json& value, const std::int64_t&) {
  return value.is_number_integer() && (!value.is_number_unsigned() || value.get<std::uint64_t>() >> 63U == 0);
}

}  // namespace

nlohmann::json spec_to_json(const ModelSpec& spec) {
  nlohmann::json json = {{"arch", name_of(spec.arch)}};
  visit_members(spec, [&](const char* key, const auto& member) { json[key] = member; });
  return json;
}

ModelSpec spec_from_json(const nlohmann::json& json, std::string_view file) {
  ModelSpec spec;
  const auto value_of = [&](const char* key) -> const nlohmann::json& {
    if (!json.is_object() || !json.contains(key)) throw_user_error("{}: the model has no \"{}\".", file, key);
    return json.at(key);
  };
  const nlohmann::json& arch = value_of("arch");
  if (arch == name_of(Architecture::kGpt2)) {
    spec.arch = Architecture::kGpt2;
  } else if (arch == name_of(Architecture::kLlama)) {
    spec.arch = Architecture::kLlama;
  } else {
    throw_user_error("{}: the model's \"arch\" is neither \"gpt2\" nor \"llama\".", file);
  }
  visit_members(spec, [&](const char* key, auto& member) {
    const nlohmann::json& value = value_of(key);
    if (!holds(value, member)) throw_user_error("{}: the model's \"{}\" has the wrong type.", file, key);
    value.get_to(member);
  });
  try {
    validate(spec);
  } catch (const UserError& error) {
    throw_user_error("{}: {}", file, error.what());
  }
  return spec;
}

}  // namespace meshtrain
