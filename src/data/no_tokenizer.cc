#include "data/no_tokenizer.h"

#include "base/error.h"

namespace meshtrain {
namespace {

[[noreturn]] void throw_no_tokenizer() {
  throw_user_error(
      "data.tokenizer = \"none\": there is text, and no tokenizer for it. Name one with -s data.tokenizer=…, "
      "or use token files. (It is \"none\" for a model folder that has neither a tokenizer.json nor a "
      "tokenizer.model.)");
}

}  // namespace

std::unique_ptr<Encoder> NoTokenizer::encoder() const {
  throw_no_tokenizer();
}

std::int32_t NoTokenizer::require_end_of_document() const {
  throw_no_tokenizer();
}

std::string NoTokenizer::decode(std::span<const std::int32_t> ids) const {
  if (!ids.empty()) throw_run_error("token id {} cannot be decoded: there is no tokenizer", ids[0]);
  return "";
}

bool NoTokenizer::is_special(std::int32_t /*id*/) const {
  return false;
}

std::size_t NoTokenizer::split_point(std::string_view text, std::size_t /*from*/) const {
  return text.size();
}

}  // namespace meshtrain
