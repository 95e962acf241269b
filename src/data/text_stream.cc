#include "data/text_stream.h"

#include "data/unicode.h"

namespace meshtrain {

TextStream::TextStream(const Tokenizer& tokenizer, std::span<const std::int32_t> before)
    : tokenizer_(tokenizer) {
  for (const std::int32_t id : before) (void)bytes_of(id);
}

std::string TextStream::add(std::int32_t id) {
  pending_ += bytes_of(id);
  std::string rest = pending_.substr(pending_.size() - unfinished_bytes(pending_));
  pending_.resize(pending_.size() - rest.size());
  pending_.swap(rest);
  std::string storage;
  return std::string(valid_utf8(rest, storage));
}

std::string TextStream::finish() {
  std::string storage;
  std::string text(valid_utf8(pending_, storage));
  pending_.clear();
  return text;
}

std::string TextStream::bytes_of(std::int32_t id) {
  if (tokenizer_.is_special(id)) return {};
  const std::size_t shown = tokenizer_.decode(context_).size();
  context_.push_back(id);
  const std::string text = tokenizer_.decode(context_).substr(shown);
  if (tokenizer_.decode({&id, 1}).empty()) {
    if (shown > 0) context_.pop_back();
  } else {
    context_ = {id};
  }
  return text;
}

}  // namespace meshtrain
