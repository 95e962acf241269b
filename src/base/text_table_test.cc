#include "base/text_table.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "base/text_wrap.h"

namespace meshtrain {
namespace {

using Align = TextTable::Align;

std::size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t most = 0;
  for (std::string line; std::getline(lines, line);) most = std::max(most, columns_of(line));
  return most;
}

TEST(TextTable, NumbersStandOnTheRightAndWordsOnTheLeft) {
  TextTable table("name", {{"count"}, {"what", Align::kLeft}});
  table.add("a", {"12345678", "x"});
  table.add("größe", {"7", "yes"});
  EXPECT_EQ(table.text(),
            "name      count  what\n"
            "a      12345678  x\n"
            "größe         7  yes\n");
}

TEST(TextTable, ALongNameHasALineOfItsOwn) {
  TextTable table("mesh", {{"loss"}, {"norm"}});
  table.add("dp=1", {"1.5", "2"});
  table.add("dp=2 zero=3 tp=2", {"1.25", "10"});
  EXPECT_EQ(table.text(22),
            "mesh        loss  norm\n"
            "dp=1         1.5     2\n"
            "dp=2 zero=3 tp=2\n"
            "            1.25    10\n");
}

TEST(TextTable, LastWordsAreWrapped) {
  TextTable table("n", {{"v"}, {"remark", Align::kLeft}});
  table.add("a", {"1", "some words that are too long for the line that they stand in"});
  EXPECT_EQ(table.text(40),
            "n  v  remark\n"
            "a  1  some words that are too long for\n"
            "      the line that they stand in\n");
}

TEST(TextTable, ColumnsThatDoNotFitFollowBelow) {
  TextTable table("stage", {{"parameters"}, {"gradients"}, {"activations"}});
  table.add("0", {"1", "2", "3"});
  EXPECT_EQ(table.text(30),
            "stage  parameters  gradients\n"
            "0               1          2\n"
            "\n"
            "stage  activations\n"
            "0                3\n");
}

// Whatever stands in it, a line is no wider than asked for, and every cell is there.
TEST(TextTable, AnySizes) {
  for (std::size_t length = 1; length < 70; length += 3) {
    for (std::size_t columns = 1; columns < 9; ++columns) {
      std::vector<TextTable::Column> headers;
      std::vector<std::string> cells;
      for (std::size_t i = 0; i < columns; ++i) {
        headers.push_back({"header" + std::to_string(i)});
        cells.push_back(std::to_string(1000000007 * (i + 1)));
      }
      std::string name(length, 'n');
      for (std::size_t i = 7; i < length; i += 8) name[i] = ' ';
      TextTable table("name", headers);
      table.add("short", cells);
      table.add(name, cells);
      const std::string text = table.text();
      EXPECT_LE(widest_line(text), TextTable::kWidth) << text;
      for (const std::string& cell : cells) EXPECT_NE(text.find(cell), std::string::npos) << text;
      EXPECT_EQ(text.find(" \n"), std::string::npos) << text;
    }
  }
}

TEST(TextTable, HangingLines) {
  EXPECT_EQ(hanging_line("size", "three words here", 6, 17), "size  three words\n      here\n");
  EXPECT_EQ(hanging_line("a long name", "words", 6, 80), "a long name\n      words\n");
  EXPECT_EQ(hanging_line("size", "", 6, 80), "size\n");
}

}  // namespace
}  // namespace meshtrain
