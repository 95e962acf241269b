// Defaults that depend on other keys: sizes of the model, decay, folders.
#pragma once

#include <functional>
#include <string_view>

#include "train/config.h"

namespace meshtrain {

// Whether the file or an override gives "section.key".
using SaidKey = std::function<bool(std::string_view full_name)>;

// Fills in every key of `config` that was not said and has no fixed default. Throws UserError where what
// was said has no effect or is not enough.
void fill_in_defaults(Config& config, const SaidKey& said);

}  // namespace meshtrain
