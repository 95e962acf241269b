#include "train/threads.h"

#include <charconv>
#include <cstdlib>
#include <system_error>

#include "base/cores.h"
#include "base/error.h"

namespace meshtrain {

std::optional<int> parse_omp_num_threads(std::string_view value) {
  const auto begin = value.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return std::nullopt;
  int threads = 0;
  const char* const end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data() + begin, end, threads);
  const auto next = value.find_first_not_of(" \t", static_cast<std::size_t>(rest - value.data()));
  if (error != std::errc() || threads < 1 || (next != std::string_view::npos && value[next] != ',')) {
    throw_user_error(
        "OMP_NUM_THREADS is \"{}\": it should be a number of threads from 1 on; unset it for all cores.",
        value);
  }
  return threads;
}

int threads_by_default(int cores) {
  const char* const value = std::getenv("OMP_NUM_THREADS");
  return (value != nullptr ? parse_omp_num_threads(value) : std::nullopt).value_or(cores);
}

int resolve_threads(std::int64_t asked) {
  return asked > 0 ? static_cast<int>(asked) : threads_by_default(static_cast<int>(available_cores().size()));
}

}  // namespace meshtrain
