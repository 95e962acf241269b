// Any config.json is either a model that validate() accepts, and whose tensors can be listed, or a UserError;
// so is any index, whose files all lie in its folder.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/huggingface/config.h"
#include "checkpoint/huggingface/folder.h"
#include "checkpoint/huggingface/layout.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace meshtrain;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    ModelSpec spec = spec_of_hf_config(text, "config.json");
    validate(spec);
    if (spec_of_hf_config(hf_config_of(spec, DType::kF32, nlohmann::json::object()), "written") != spec)
      std::abort();
    spec.layers = 1;  // what a file says may be a list that no memory holds
    if (hf_tensors(spec, "").empty()) std::abort();
  } catch (const UserError&) {
  }
  try {
    for (const auto& [tensor, file] : parse_hf_index(text, "index")) {
      if (file.find('/') != std::string::npos || file == ".." || file.empty()) std::abort();
    }
  } catch (const UserError&) {
  }
  return 0;
}
