// The checks behind validate(Config).
#pragma once

#include "train/config.h"

namespace meshtrain {

// All of validate(config), with a vocabulary of 0 taken to be filled in later.
void validate_but_vocabulary(const Config& config);

}  // namespace meshtrain
