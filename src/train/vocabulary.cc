#include "train/vocabulary.h"

#include "base/error.h"

namespace meshtrain {

Config with_vocabulary(Config config, const Tokenizer& tokenizer) {
  if (config.model.vocab == 0) config.model.vocab = tokenizer.vocab_size();
  if (config.model.vocab == 0) {
    throw_user_error("data.tokenizer = \"{}\" does not say how many tokens there are: set model.vocab.",
                     tokenizer.name());
  }
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
