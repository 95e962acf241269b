// What the program says beside its output: one line on standard error.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace meshtrain {

template <class... Args>
void notice(fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(stderr, "meshtrain: {}\n", fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace meshtrain
