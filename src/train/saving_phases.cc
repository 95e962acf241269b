#include "train/saving_phases.h"

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "checkpoint/checkpoint_folder.h"

namespace meshtrain {
namespace {

// The step of the checkpoint that `path` is or lies in; 0: none.
std::int64_t step_in(const std::filesystem::path& path) {
  std::int64_t found = 0;
  for (const std::filesystem::path& part : path) found = step_of_name(part.string()).value_or(found);
  return found;
}

}  // namespace

WriteHook phases_of_saving(std::function<void(std::string_view phase, std::int64_t step)> at_phase) {
  if (!at_phase) return {};
  return [at_phase = std::move(at_phase), saving = std::make_shared<std::int64_t>(0)](std::string_view phase,
                                                                                      std::string_view path) {
    const std::int64_t step = step_in(path);
    // Later it may be about an older one that goes; before, about what an earlier attempt at this step left.
    const bool begins = phase == "copy" || phase == "create";
    if (step > *saving || (begins && step > 0)) *saving = step;
    at_phase(phase, *saving);
  };
}

}  // namespace meshtrain
