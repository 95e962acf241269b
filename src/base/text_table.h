// Tables for people, in lines of a terminal's width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshtrain {

// Columns that line up, two spaces apart. The first is what a row is called; numbers stand on the right, words
// on the left. No line is wider than asked for, unless a single word or number is, and nothing is cut:
//
// - a name that is too long for its column has a line of its own, above the rest of its row;
// - a last column of words is wrapped within it;
// - columns that still do not fit follow below as another table with the same names.
class TextTable {
 public:
  enum class Align : std::uint8_t { kLeft, kRight };
  struct Column {
    std::string header;
    Align align = Align::kRight;
  };
  static constexpr std::size_t kWidth = 80;

  // `name`: the header of the first column.
  TextTable(std::string name, std::vector<Column> columns);

  // A cell for every column.
  void add(std::string name, std::vector<std::string> cells);

  // Lines that end with a newline and not with spaces.
  std::string text(std::size_t width = kWidth) const;

 private:
  struct Row {
    std::string name;
    std::vector<std::string> cells;
  };
  // Columns [first, end) and the widths that they are printed with.
  struct Block {
    std::size_t first = 0;
    std::size_t end = 0;
    std::size_t width = 0;  // of the table
    std::size_t name_width = 0;
    std::vector<std::size_t> widths;
  };

  std::size_t widest(std::size_t column) const;
  std::size_t widest_name() const;
  bool wraps(std::size_t column) const;
  Block block_from(std::size_t first, std::size_t width) const;
  void print_row(const Row& row, const Block& block, std::string& text) const;

  std::vector<Row> rows_;  // the first has the headers
  std::vector<Column> columns_;
};

// A line of a list of facts: `name` padded to `indent` columns, then `words`, which wrap below where they
// begin.
std::string hanging_line(std::string_view name, std::string_view words, std::size_t indent,
                         std::size_t width = TextTable::kWidth);

}  // namespace meshtrain
