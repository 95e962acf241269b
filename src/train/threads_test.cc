#include "train/threads.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>

#include "base/error.h"

namespace meshtrain {
namespace {

TEST(Threads, OmpNumThreadsIsANumberOrAList) {
  EXPECT_EQ(parse_omp_num_threads("4"), 4);
  EXPECT_EQ(parse_omp_num_threads(" 8 "), 8);
  EXPECT_EQ(parse_omp_num_threads("16,2"), 16);
  EXPECT_EQ(parse_omp_num_threads("16 , 2"), 16);
  EXPECT_EQ(parse_omp_num_threads(""), std::nullopt);
  for (const char* bad : {"0", "-1", "four", "4x", "4 2", ",2", "99999999999"}) {
    try {
      parse_omp_num_threads(bad);
      ADD_FAILURE() << bad;
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("OMP_NUM_THREADS is \"" + std::string(bad) + "\""),
                std::string::npos);
    }
  }
}

TEST(Threads, TheConfigWinsThenOmpNumThreadsThenTheCores) {
  unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(resolve_threads(7), 7);
  EXPECT_EQ(threads_by_default(5), 5);
  EXPECT_GE(resolve_threads(0), 1);
  setenv("OMP_NUM_THREADS", "3", 1);
  EXPECT_EQ(resolve_threads(7), 7);
  EXPECT_EQ(threads_by_default(5), 3);
  EXPECT_EQ(resolve_threads(0), 3);
  unsetenv("OMP_NUM_THREADS");
}

}  // namespace
}  // namespace meshtrain
