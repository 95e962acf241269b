// The tensors of a model as Hugging Face's library names and lays them out, and where our parameters lie in
// them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/tensor.h"
#include "model/spec.h"

namespace meshtrain {

// A tensor of a folder and the parameters that it holds, one after the other along its outputs.
struct HfTensor {
  struct Part {
    std::string name;  // ours
    Shape shape;       // [out, in] or [n]
  };
  std::string name;
  Shape shape;
  // GPT-2's Conv1D: [in, out], where ours are [out, in].
  bool transposed = false;
  // lm_head.weight of a tied model: some files have it, a copy of the embedding.
  bool optional = false;
  std::vector<Part> parts;
};

// Every tensor in the order of the forward pass. `prefix` precedes all names but lm_head's.
std::vector<HfTensor> hf_tensors(const ModelSpec& spec, std::string_view prefix);

// "model." or "transformer.", as a model with a head has it; the model without has none.
std::string_view hf_prefix(Architecture arch);
// The token embedding without a prefix: every folder has it.
std::string_view hf_embedding_name(Architecture arch);

// Constants that old files hold beside the weights: masks and rotary frequencies, which are computed.
bool is_hf_buffer(std::string_view name);

}  // namespace meshtrain
