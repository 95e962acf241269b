#include <gtest/gtest.h>

#include <sstream>

#include "pipeline/timeline.h"

namespace meshtrain {
namespace {

std::string drawn(std::string_view name, const PipelineShape& shape, int columns = 500) {
  return draw(*find_schedule(name), shape, columns);
}

TEST(Draw, OneForwardOneBackward) {
  EXPECT_EQ(drawn("1f1b", {2, 1, 3}),
            "stage 0 | F0 F1 .. .. B0--- F2 B1--- .. B2---\n"
            "stage 1 | .. F0 B0--- F1 B1--- F2 B2--- .. ..\n"
            "idle 25.0 % of the time (1/4); published (p-1)/(m+p-1) = 25.0 %\n");
}

}  // namespace
}  // namespace meshtrain
