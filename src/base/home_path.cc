#include "base/home_path.h"

#include <pwd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/error.h"

namespace meshtrain {
namespace {

// Calls the reentrant `look_up` with as much memory as it asks for; empty: no such user, or one without a home.
std::string home_by(const std::function<int(passwd*, char*, std::size_t, passwd**)>& look_up) {
  constexpr std::size_t kMost = 1U << 20U;
  for (std::vector<char> memory(1024); memory.size() <= kMost; memory.resize(2 * memory.size())) {
    passwd entry{};
    passwd* found = nullptr;
    const int error = look_up(&entry, memory.data(), memory.size(), &found);
    if (error == ERANGE) continue;
    return found != nullptr && found->pw_dir != nullptr ? found->pw_dir : "";
  }
  return "";
}

std::string own_home() {
  const char* const variable = std::getenv("HOME");
  if (variable != nullptr && *variable != '\0') return variable;
  return home_by([](passwd* entry, char* memory, std::size_t size, passwd** found) {
    return getpwuid_r(getuid(), entry, memory, size, found);
  });
}

std::string home_of(const std::string& user) {
  return home_by([&](passwd* entry, char* memory, std::size_t size, passwd** found) {
    return getpwnam_r(user.c_str(), entry, memory, size, found);
  });
}

}  // namespace

std::string expand_home(const std::string& path) {
  if (!path.starts_with('~')) return path;
  const std::size_t slash = std::min(path.find('/'), path.size());
  const std::string user = path.substr(1, slash - 1);
  std::string home = user.empty() ? own_home() : home_of(user);
  if (home.empty()) {
    throw_user_error(
        "{}: no home folder is known{}; name the folder itself, or write ./{} for a file of that name", path,
        user.empty() ? ": HOME is not set, and the system does not know this user"
                     : fmt::format(" of a user \"{}\"", user),
        path);
  }
  while (home.size() > 1 && home.ends_with('/')) home.pop_back();
  const std::string rest = path.substr(slash);
  return home == "/" && !rest.empty() ? rest : home + rest;
}

}  // namespace meshtrain
