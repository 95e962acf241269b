// Two kinds of exception, after the two ways a run goes wrong, plus a check for our own mistakes.
//
// UserError: a mistake of the user found before step 1 (config, file, mesh). Exit status 2.
// RunError: a fault while running (disk full, non-finite loss, lost rank). Exit status 1.
// A message is one paragraph: what was asked, what is wrong (file, key, value), what to do.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace meshtrain {

class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class RunError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

template <class... Args>
[[noreturn]] void throw_user_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void throw_run_error(fmt::format_string<Args...> format, Args&&... args) {
  throw RunError(fmt::format(format, std::forward<Args>(args)...));
}

// Throws std::logic_error naming the place: a caller broke a contract inside meshtrain.
// (The built-ins stand for std::source_location, which clang 14 lacks.)
inline void check(bool holds, std::string_view what, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
  if (!holds) {
    throw std::logic_error(fmt::format("internal error: {} ({}:{})", what, file, line));
  }
}

}  // namespace meshtrain
