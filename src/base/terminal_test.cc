#include "base/terminal.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>

namespace meshtrain {
namespace {

// Columns of a terminal that says `told` of itself (0: nothing), with COLUMNS as given.
std::size_t columns_of_terminal(int told, const std::optional<std::string>& variable) {
  const char* const value = std::getenv("COLUMNS");
  const std::optional<std::string> before = value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  const auto set = [](const std::optional<std::string>& text) {
    text ? setenv("COLUMNS", text->c_str(), 1) : unsetenv("COLUMNS");
  };
  winsize size{};
  size.ws_col = static_cast<unsigned short>(told);
  int ends[2] = {-1, -1};
  if (openpty(&ends[0], &ends[1], nullptr, nullptr, &size) != 0) return 0;
  set(variable);
  const std::size_t columns = terminal_columns(ends[1]);
  set(before);
  close(ends[0]);
  close(ends[1]);
  return columns;
}

TEST(Terminal, ItsOwnWidthThenTheVariableThenEighty) {
  EXPECT_EQ(columns_of_terminal(100, std::nullopt), 100U);
  EXPECT_EQ(columns_of_terminal(100, "40"), 100U);
  EXPECT_EQ(columns_of_terminal(0, "40"), 40U);
  EXPECT_EQ(columns_of_terminal(0, std::nullopt), 80U);
  for (const char* nonsense : {"", "0", "-3", "40x", "wide"}) EXPECT_EQ(columns_of_terminal(0, nonsense), 80U);
}

TEST(Terminal, AFileHasNoWidthAndKeepsItsLines) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(terminal_columns(fileno(file)), 0U);
  const std::string line(300, 'w');
  print_line(file, line + " " + line);
  std::rewind(file);
  std::string text(1000, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  EXPECT_EQ(text, line + " " + line + "\n");
}

}  // namespace
}  // namespace meshtrain
