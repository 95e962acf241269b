#include "train/vocabulary.h"

#include "base/error.h"

namespace meshtrain {

Config with_vocabulary(Config config, const Tokenizer& tokenizer) {
  if (config.model.vocab == 0) config.model.vocab = tokenizer.vocab_size();
  validate(config);
  return config;
}

Config with_vocabulary(Config config) {
  if (config.model.vocab == 0)
    return with_vocabulary(std::move(config), *make_tokenizer(config.data.tokenizer));
  validate(config);
  return config;
}

}  // namespace meshtrain
