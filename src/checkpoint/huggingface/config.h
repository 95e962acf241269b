// config.json of a Hugging Face model folder: llama, mistral, qwen2, qwen3 and gpt2, in the versions of their
// library that write torch_dtype, rope_theta and rope_scaling, and in those that write dtype and
// rope_parameters.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "model/spec.h"

namespace meshtrain {

// The model that a config.json describes; fields that are left out have the library's defaults. Throws
// UserError naming `path`, the field and its value where the mathematics is not what meshtrain computes.
// Dropout is not read: it is off when a model is used, and meshtrain trains without.
ModelSpec spec_of_hf_config(std::string_view text, const std::string& path);

// A config.json that the library loads as the same model, with weights of `dtype` and the fields of `token_ids`
// (bos_token_id and its like). Throws UserError when it has no such model.
std::string hf_config_of(const ModelSpec& spec, DType dtype, const nlohmann::json& token_ids);

// The text with torch_dtype (or dtype, whichever it has) changed.
std::string with_hf_dtype(const std::string& config_text, DType dtype);

// "float32", "bfloat16", "float16".
std::string_view hf_dtype_name(DType dtype);

}  // namespace meshtrain
