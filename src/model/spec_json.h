// ModelSpec as JSON, for checkpoint manifests and reports. Keys are those of the config's [model] section.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "model/spec.h"

namespace meshtrain {

nlohmann::json spec_to_json(const ModelSpec& spec);

// Reads what spec_to_json wrote and validates it. Throws UserError naming `file` and the key.
ModelSpec spec_from_json(const nlohmann::json& json, std::string_view file);

}  // namespace meshtrain
