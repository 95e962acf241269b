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

TEST(Draw, WeightsAndAFractionThatIsNotThePublishedOne) {
  EXPECT_EQ(drawn("zb-h1", {3, 1, 2}),
            "stage 0 | F0 F1 .. .. .. B0 W0 B1 W1\n"
            "stage 1 | .. F0 F1 .. B0 .. B1 W0 W1\n"
            "stage 2 | .. .. F0 B0 F1 B1 W0 W1 ..\n"
            "idle 33.3 % of the time (1/3); published (p-1)/(3m+p-1) = 25.0 %, where m is a multiple of p\n");
}

TEST(Draw, Chunks) {
  EXPECT_EQ(drawn("interleaved", {2, 2, 2}),
            "stage 0 | F0.0 F1.0 F0.1 F1.1 .... .... B0.1----- .... B1.1----- B0.0----- B1.0-----\n"
            "stage 1 | .... F0.0 F1.0 F0.1 B0.1----- F1.1 B1.1----- B0.0----- B1.0----- .... ....\n"
            "idle 20.0 % of the time (1/5); published (p-1)/(v*m+p-1) = 20.0 %\n");
}

TEST(Draw, CutsWhatIsTooWideAndSaysSo) {
  EXPECT_EQ(drawn("1f1b", {2, 1, 3}, 27),
            "stage 0 | F0 F1 .. .. B0---\n"
            "stage 1 | .. F0 B0--- F1 B1\n"
            "cut to 27 columns: the first 6 of 12 units of time\n"
            "idle 25.0 % of the time (1/4); published (p-1)/(m+p-1) = 25.0 %\n");
  EXPECT_EQ(drawn("1f1b", {1, 1, 1}, 0),
            "stage 0 | F0\n"
            "cut to 0 columns: the first 1 of 3 units of time\n"
            "idle 0.0 % of the time (0/1); published (p-1)/(m+p-1) = 0.0 %\n");
}

TEST(Draw, AlignsStagesAndWideNames) {
  std::istringstream lines(drawn("gpipe", {11, 1, 11}));
  std::string first;
  std::getline(lines, first);
  EXPECT_EQ(first.substr(0, 52), "stage  0 | F0  F1  F2  F3  F4  F5  F6  F7  F8  F9  F");
}

}  // namespace
}  // namespace meshtrain
