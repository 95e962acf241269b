#include "base/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>

#include "base/text_wrap.h"

namespace meshtrain {

std::size_t terminal_columns(int descriptor) {
  if (isatty(descriptor) != 1) return 0;
  winsize size{};
  if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  constexpr std::size_t kUsual = 80;
  const char* const variable = std::getenv("COLUMNS");
  if (variable == nullptr) return kUsual;
  const std::string_view text = variable;
  std::size_t columns = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), columns);
  const bool usable = error == std::errc() && end == text.data() + text.size() && columns > 0;
  return usable ? columns : kUsual;
}

std::string wrapped_for(std::FILE* out, std::string_view text) {
  const std::size_t columns = terminal_columns(fileno(out));
  return columns > 0 ? wrap(text, columns) : std::string(text);
}

void print_line(std::FILE* out, std::string_view text) {
  const std::string line = wrapped_for(out, text) + '\n';
  std::fwrite(line.data(), 1, line.size(), out);
  std::fflush(out);
}

}  // namespace meshtrain
