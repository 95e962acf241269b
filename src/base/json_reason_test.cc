#include "base/json_reason.h"

#include <gtest/gtest.h>

namespace meshtrain {
namespace {

std::string reason(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    return json.at("key").get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    return json_reason(error);
  }
}

TEST(JsonReason, SaysWhereAndNotByWhom) {
  EXPECT_TRUE(reason("{\"a\": 1,\n oops}").starts_with("line 2, column 2: syntax error"))
      << reason("{\"a\": 1,\n oops}");
  EXPECT_EQ(reason("{}"), "key 'key' not found");
  for (const std::string text : {"", "{", "{\"key\": 3}", "[1, 2"}) {
    EXPECT_EQ(reason(text).find("json.exception"), std::string::npos) << reason(text);
    EXPECT_FALSE(reason(text).empty());
  }
}

TEST(JsonReason, StaysShortAndWholeCharacters) {
  for (std::size_t pad = 0; pad < 4; ++pad) {
    std::string text = "\"" + std::string(pad, 'x');
    for (int i = 0; i < 500; ++i) text += "é";
    const std::string what = reason(text);
    EXPECT_LT(what.size(), 150U);
    EXPECT_NO_THROW(nlohmann::json(what).dump()) << what;  // well-formed UTF-8
  }
}

TEST(JsonReason, IsUtf8WhateverWasRead) {
  for (const std::string text : {"\"caf\xe9\"", "{\"a\": 1}\xc2", "\xff", "\"\xf0\x9f\""}) {
    EXPECT_NO_THROW(nlohmann::json(reason(text)).dump()) << text;
  }
}

}  // namespace
}  // namespace meshtrain
