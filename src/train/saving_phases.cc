#include "train/saving_phases.h"

#include <charconv>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "checkpoint/checkpoint_folder.h"

namespace meshtrain {
namespace {

// The step of the checkpoint that `path` is or lies in; 0: none.
std::int64_t step_in(const std::filesystem::path& path) {
  std::int64_t found = 0;
  for (const std::filesystem::path& part : path) {
    const std::string name = part.string();
    const std::size_t digits = name.find('-') + 1;
    std::int64_t step = 0;
    std::from_chars(name.data() + digits, name.data() + name.size(), step);
    if (step > 0 && name == checkpoint_name(step)) found = step;
  }
  return found;
}

}  // namespace

WriteHook phases_of_saving(std::function<void(std::string_view phase, std::int64_t step)> at_phase) {
  if (!at_phase) return {};
  return
      [at_phase = std::move(at_phase), saving = std::make_shared<std::int64_t>(0)](const std::string& event) {
        const std::size_t word = event.starts_with("before ") ? event.find(' ') + 1 : 0;
        const std::size_t end = event.find(' ', word);
        const std::string phase = event.substr(0, end);
        const std::int64_t step = step_in(event.substr(end + 1));
        // Later it may be about an older one that goes; before, about what an earlier attempt at this step
        // left.
        const bool begins = phase == "copy" || phase == "create";
        if (step > *saving || (begins && step > 0)) *saving = step;
        at_phase(phase, *saving);
      };
}

}  // namespace meshtrain
