// tokenizer.json from any bytes: it is refused by name, or it encodes any text, in parts as whole.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/hf_tokenizer.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void encode(const meshtrain::Tokenizer& tokenizer, std::string_view text) {
  const auto encoder = tokenizer.encoder();
  std::vector<std::int32_t> ids;
  encoder->encode(text, ids);
  for (const std::int32_t id : ids) require(id >= 0 && id < tokenizer.vocab_size());
  (void)tokenizer.decode(ids);
  if (text.empty()) return;
  const std::size_t at = tokenizer.split_point(text, 1 + text.size() / 2);
  require(at <= text.size());
  std::vector<std::int32_t> parts;
  encoder->encode(text.substr(0, at), parts);
  encoder->encode(text.substr(at), parts);
  require(parts == ids);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = meshtrain::parse_hf_tokenizer(input, "fuzz.json");
    encode(*tokenizer, "it's a b\ncd  12345 e\u0301 \u4e2d\u6587<|x|> a<y> b\r\n\xFF\xE4\xB8 aaaaaaaaaaaa");
    encode(*tokenizer, input.substr(size - std::min<std::size_t>(size, 200)));
  } catch (const meshtrain::UserError&) {
  } catch (const meshtrain::RunError&) {
    // A regular expression that backtracks without end.
  }
  return 0;
}
