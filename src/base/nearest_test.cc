#include "base/nearest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace meshtrain {
namespace {

TEST(Nearest, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("abc", ""), 3U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2U);
  EXPECT_EQ(edit_distance("haeds", "heads"), 1U);
  EXPECT_EQ(edit_distance("Seq-Len", "seq_len"), 0U);
  EXPECT_EQ(edit_distance(std::string(100000, 'x'), "x"), 255U);  // bounded work
}

TEST(Nearest, PicksTheClosest) {
  const std::vector<std::string> keys = {"layers", "heads", "kv_heads", "head_dim"};
  EXPECT_EQ(nearest("heds", keys), "heads");
  EXPECT_EQ(nearest("kv_head", keys), "kv_heads");
  EXPECT_EQ(nearest("layer", keys), "layers");
  EXPECT_EQ(nearest("heads", {}), "");
}

TEST(Nearest, DivisorsAround) {
  EXPECT_EQ(divisors_around(64, 5), "4 or 8");
  EXPECT_EQ(divisors_around(12, 4), "4");
  EXPECT_EQ(divisors_around(7, 5), "1 or 7");
  EXPECT_EQ(divisors_around(32, 100), "32");
  EXPECT_EQ(divisors_around(32, -3), "1");
}

}  // namespace
}  // namespace meshtrain
