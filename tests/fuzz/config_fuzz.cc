// Any text is either a config or a UserError; what is accepted reads back from its own to_toml.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "train/config.h"

// The first line is an override when it begins with "-s ".
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> overrides;
  if (text.starts_with("-s ")) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    overrides.emplace_back(text.substr(3, end - 3));
    text.remove_prefix(end);
  }
  try {
    const meshtrain::Config config = meshtrain::parse_config(text, "fuzz", overrides);
    if (!(meshtrain::parse_config(meshtrain::to_toml(config), "again", {}) == config)) std::abort();
  } catch (const meshtrain::UserError&) {
  }
  return 0;
}
