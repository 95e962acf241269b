#include "base/nearest.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
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
  EXPECT_EQ(nearest("zb", std::vector<std::string>{"1f1b", "zb-h1"}), "zb-h1");
  EXPECT_EQ(nearest("Layers", keys), "layers");
  EXPECT_EQ(nearest("--head-dmi", keys), "head_dim");
}

TEST(Nearest, NothingAlikeIsNoSuggestion) {
  const std::vector<std::string> options = {"--help", "--resume", "--trace", "-s", "-h"};
  for (const char* name : {"--lr", "--out", "-x", "--", "", "--batch-size", "--model"}) {
    EXPECT_EQ(nearest(name, options), "") << name;
  }
  const std::vector<std::string> commands = {"train", "eval", "generate", "tokenize", "plan", "verify"};
  for (const char* name : {"sample", "run", "fit", "convert", "a.toml", "x"}) {
    EXPECT_EQ(nearest(name, commands), "") << name;
  }
  const std::vector<std::string> keys = {"from", "preset", "layers", "engine", "lr", "dp"};
  for (const char* name : {"dropout", "device", "lx", "rl2", "activation"})
    EXPECT_EQ(nearest(name, keys), "") << name;
  EXPECT_EQ(nearest("layrs", keys), "layers");
}

TEST(Nearest, HintsAreForTheEndOfAClause) {
  const std::vector<std::string> names = {"adam", "sgd"};
  EXPECT_EQ(nearest_hint("adma", names), "; the nearest is \"adam\"");
  EXPECT_EQ(nearest_hint("adma", names, ""), "; the nearest is adam");
  EXPECT_EQ(nearest_hint("lion", names), "");
}

TEST(Nearest, DivisorsAround) {
  EXPECT_EQ(divisors(36), (std::vector<std::int64_t>{1, 2, 3, 4, 6, 9, 12, 18, 36}));
  EXPECT_EQ(divisors(1), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(divisors_around(64, 5), "4 or 8");
  EXPECT_EQ(divisors_around(12, 4), "4");
  EXPECT_EQ(divisors_around(7, 5), "1 or 7");
  EXPECT_EQ(divisors_around(32, 100), "32");
  EXPECT_EQ(divisors_around(32, -3), "1");
  EXPECT_EQ(divisors_around(1, 1), "1");
  EXPECT_EQ(divisors_around(1000000007, 4), "1 or 1000000007");  // a prime, at once
  EXPECT_EQ(divisors_around(std::int64_t{1} << 40, 3), "2 or 4");
  for (std::int64_t n = 1; n <= 60; ++n) {
    for (std::int64_t value = 1; value <= n; ++value) {
      std::int64_t below = value;
      std::int64_t above = value;
      while (n % below != 0) --below;
      while (n % above != 0) ++above;
      EXPECT_EQ(divisors_around(n, value),
                below == above ? std::to_string(below) : fmt::format("{} or {}", below, above));
    }
  }
}

}  // namespace
}  // namespace meshtrain
