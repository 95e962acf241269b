// The real program as a person runs it: in a terminal of some width.
#pragma once

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "program.h"

namespace meshtrain {

struct Screen {
  int status = 0;
  std::string
      text;  // all that was written, without carriage returns; a line that is written over counts as its last
};

// Runs it with all standard streams on a terminal of `columns`, in `directory`.
inline Screen run_in_terminal(const fs::path& directory, const Arguments& arguments,
                              int columns = 80) {
  winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<unsigned short>(columns);
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) throw std::runtime_error("no terminal");
  if (child == 0) {
    std::vector<std::string> words = {MESHTRAIN_BINARY};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    if (chdir(directory.c_str()) != 0) _exit(126);
    execv(argv[0], argv.data());
    _exit(127);
  }
  std::string bytes;
  char buffer[1 << 14];
  for (ssize_t count = 0; (count = read(terminal, buffer, sizeof buffer)) > 0;) {
    bytes.append(buffer, static_cast<std::size_t>(count));
  }
  close(terminal);
  Screen screen;
  int status = 0;
  waitpid(child, &status, 0);
  screen.status = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  std::istringstream lines(bytes);
  for (std::string line; std::getline(lines, line);) {
    while (line.ends_with('\r')) line.pop_back();
    line.erase(0, line.rfind('\r') + 1);
    constexpr std::string_view kClear = "\033[K";
    for (std::size_t at = 0; (at = line.find(kClear)) != std::string::npos;) line.erase(at, kClear.size());
    screen.text += line + '\n';
  }
  return screen;
}

}  // namespace meshtrain
