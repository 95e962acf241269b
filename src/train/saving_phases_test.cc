#include "train/saving_phases.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace meshtrain {
namespace {

TEST(SavingPhases, BelongToTheCheckpointThatIsWritten) {
  std::vector<std::pair<std::string, std::int64_t>> heard;
  const WriteHook hook =
      phases_of_saving([&](std::string_view phase, std::int64_t step) { heard.emplace_back(phase, step); });
  const std::vector<std::pair<const char*, const char*>> events = {
      {"create", "a b/step-00000006"},
      {"write", "a b/step-00000006/x 1.safetensors"},
      {"before sync", "a b/step-00000006"},
      {"sync", "a b"},
      {"before rename", "a b/step-00000006/manifest.json"},
      {"uncommit", "a b/step-00000002"},
      {"sync", "a b/step-00000002"},
      {"remove", "a b/step-00000002/x 1.safetensors"},
      {"remove", "a b/step-00000008"},
      {"create", "a b/step-00000008"},
      {"create", "a b/step-00000007"}};  // after a roll-back
  for (const auto& [step, path] : events) hook(step, path);
  const std::vector<std::pair<std::string, std::int64_t>> expected = {
      {"create", 6}, {"write", 6},  {"before sync", 6}, {"sync", 6},   {"before rename", 6}, {"uncommit", 6},
      {"sync", 6},   {"remove", 6}, {"remove", 8},      {"create", 8}, {"create", 7}};
  EXPECT_EQ(heard, expected);
  EXPECT_FALSE(phases_of_saving({}));
}

}  // namespace
}  // namespace meshtrain
