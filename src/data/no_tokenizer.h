// For token files: text can neither be made into tokens nor be made of them.
#pragma once

#include "data/tokenizer.h"

namespace meshtrain {

class NoTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "none"; }
  std::int64_t vocab_size() const override { return 0; }
  std::optional<std::int32_t> end_of_document() const override { return std::nullopt; }
  // Both throw UserError saying how to name a tokenizer.
  std::unique_ptr<Encoder> encoder() const override;
  std::int32_t require_end_of_document() const override;
  std::string decode(std::span<const std::int32_t> ids) const override;  // only of no ids
  bool is_special(std::int32_t id) const override;
  std::size_t split_point(std::string_view text, std::size_t from) const override;
};

}  // namespace meshtrain
