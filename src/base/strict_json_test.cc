#include "base/strict_json.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace meshtrain {
namespace {

std::string complaint(const std::string& text) {
  try {
    parse_strictly(text);
  } catch (const StrictJsonError& error) {
    return error.what();
  }
  return "";
}

TEST(StrictJson, ParsesWhatIsJson) {
  EXPECT_EQ(parse_strictly(R"({"a": [1, {"a": 2}], "b": {"a": null}})").dump(),
            R"({"a":[1,{"a":2}],"b":{"a":null}})");
}

TEST(StrictJson, SaysWhyNot) {
  EXPECT_TRUE(complaint("{\"a\": 1,\n oops}").starts_with("line 2, column 2: syntax error"));
  EXPECT_EQ(complaint(R"({"a": 1, "b": {"c": 1, "c": 1}})"), "it has the key \"c\" twice");
  EXPECT_FALSE(complaint("\"\xff\"").empty());
  EXPECT_EQ(complaint(std::string("{}\0", 3)), "it has a NUL byte at position 2");
  EXPECT_EQ(complaint("\xEF\xBB\xBF{}"), "it begins with a byte order mark");
}

TEST(StrictJson, EndsAtADepth) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_EQ(complaint(nested(kDeepestJson)), "");
  EXPECT_EQ(complaint(nested(kDeepestJson + 2)), "it is nested deeper than 64");
  EXPECT_EQ(complaint(nested(1000000)), "it is nested deeper than 64");  // what walked through it would crash
}

TEST(StrictJson, Sizes) {
  EXPECT_EQ(size_from(parse_strictly("0")), 0);
  EXPECT_EQ(size_from(parse_strictly("9223372036854775807")), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(size_from(nlohmann::json(3)), 3);  // signed
  for (const std::string text : {"-1", "9223372036854775808", "18446744073709551615", "1.0", "1e300", "\"1\"",
                                 "null", "true", "[]", "[1]"}) {
    EXPECT_EQ(size_from(parse_strictly(text)), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace meshtrain
