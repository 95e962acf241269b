#include "launch/rank_output.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <string>

namespace meshtrain {
namespace {

// What arrives at a terminal of `columns`, without carriage returns and the clearing of lines.
std::string shown_on_terminal(int columns, const std::string& prefix, const std::string& bytes) {
  winsize size{};
  size.ws_col = static_cast<unsigned short>(columns);
  int terminal = -1;
  int program = -1;
  if (openpty(&terminal, &program, nullptr, nullptr, &size) != 0) return "no terminal";
  LineWriter writer(prefix, program);
  writer.add(bytes);
  writer.finish();
  close(program);
  std::string text;
  char buffer[1 << 12];
  for (ssize_t count = 0; (count = read(terminal, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(count));
  }
  close(terminal);
  for (const std::string drop : {"\033[K", "\r"}) {
    for (std::size_t at = 0; (at = text.find(drop)) != std::string::npos;) text.erase(at, drop.size());
  }
  return text;
}

TEST(LineWriter, MessagesAreWrappedOnATerminalAndOtherLinesAreNot) {
  EXPECT_EQ(
      shown_on_terminal(30, "[rank 3] ", "meshtrain: one two three four\nplain words that are not wrapped\n"),
      "[rank 3] meshtrain: one two\nthree four\n[rank 3] plain words that are not wrapped\n");
  EXPECT_EQ(shown_on_terminal(30, "[rank 12] ", "meshtrain: `a command to copy` it"),
            "[rank 12] meshtrain:\n`a command to copy` it\n");
}

TEST(LineWriter, FilesAndPipesGetLinesAsTheyAre) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  LineWriter writer("[rank 1] ", ends[1]);
  const std::string words(200, 'w');
  writer.add("meshtrain: " + words + " " + words + "\n");
  close(ends[1]);
  std::string text(1024, '\0');
  const ssize_t count = read(ends[0], text.data(), text.size());
  close(ends[0]);
  ASSERT_GT(count, 0);
  text.resize(static_cast<std::size_t>(count));
  EXPECT_EQ(text, "[rank 1] meshtrain: " + words + " " + words + "\n");
}

}  // namespace
}  // namespace meshtrain
