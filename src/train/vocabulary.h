// The size of the vocabulary, where a config leaves it to the tokenizer.
#pragma once

#include "data/tokenizer.h"
#include "train/config.h"

namespace meshtrain {

// Fills in model.vocab from the tokenizer when it is 0, and validates the whole.
Config with_vocabulary(Config config, const Tokenizer& tokenizer);
// Opens the config's tokenizer only if it has to.
Config with_vocabulary(Config config);

}  // namespace meshtrain
