#include "data/byte_tokenizer.h"

#include <algorithm>

#include "base/error.h"

namespace meshtrain {
namespace {

class ByteEncoder final : public Encoder {
 public:
  void encode(std::string_view text, std::vector<std::int32_t>& ids) override {
    const std::size_t old_size = ids.size();
    ids.resize(old_size + text.size());
    std::transform(text.begin(), text.end(), ids.begin() + static_cast<std::ptrdiff_t>(old_size),
                   [](char c) { return static_cast<std::int32_t>(static_cast<unsigned char>(c)); });
  }
};

}  // namespace

std::unique_ptr<Encoder> ByteTokenizer::encoder() const {
  return std::make_unique<ByteEncoder>();
}

std::string ByteTokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  text.reserve(ids.size());
  for (const std::int32_t id : ids) {
    if (id < 0 || id > 256) {
      throw_run_error("token id {} cannot be decoded: tokenizer \"bytes\" has ids 0 to 256", id);
    }
    if (id < 256) text.push_back(static_cast<char>(id));
  }
  return text;
}

bool ByteTokenizer::is_special(std::int32_t id) const {
  return id == 256;
}

std::size_t ByteTokenizer::split_point(std::string_view text, std::size_t from) const {
  return std::min(from, text.size());
}

}  // namespace meshtrain
