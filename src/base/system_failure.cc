#include "base/system_failure.h"

#include <fmt/format.h>

#include <filesystem>
#include <new>
#include <system_error>

namespace meshtrain {

std::string system_failure(const std::exception& error) {
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return fmt::format("{}: {}", file->path1().string(), file->code().message());
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return "the system gives this process no more memory; use a smaller model, batch or input, or a larger "
           "limit";
  }
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) return system->what();
  return "";
}

}  // namespace meshtrain
