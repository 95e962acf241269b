// The tokenizer that needs no file: ids 0-255 are the bytes of the text, 256 ends a document.
#pragma once

#include "data/tokenizer.h"

namespace meshtrain {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string name() const override { return "bytes"; }
  std::int64_t vocab_size() const override { return 257; }
  std::optional<std::int32_t> end_of_document() const override { return 256; }
  std::unique_ptr<Encoder> encoder() const override;
  // 256 gives nothing.
  std::string decode(std::span<const std::int32_t> ids) const override;
  bool is_special(std::int32_t id) const override;
  std::size_t split_point(std::string_view text, std::size_t from) const override;
};

}  // namespace meshtrain
