#include "base/json_reason.h"

namespace meshtrain {

std::string json_reason(const nlohmann::json::exception& error) {
  constexpr std::size_t kLongest = 140;
  std::string what = error.what();
  std::size_t begin = what.find("line ");
  if (begin == std::string::npos) {
    begin = what.find("] ");
    begin = begin == std::string::npos ? 0 : begin + 2;
  }
  what.erase(0, begin);
  if (what.size() > kLongest) {
    std::size_t end = kLongest;
    while (end > 0 && (static_cast<unsigned char>(what[end]) & 0xC0U) == 0x80) --end;
    what = what.substr(0, end) + "...";
  }
  return what;
}

}  // namespace meshtrain
