#include "base/text_table.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text_wrap.h"

namespace meshtrain {
namespace {

constexpr std::size_t kGap = 2;
// Names and words have at least this where there is a choice.
constexpr std::size_t kLeastName = 9;
constexpr std::size_t kLeastWords = 16;

std::string padding(std::string_view text, std::size_t width) {
  const std::size_t used = columns_of(text);
  return std::string(width > used ? width - used : 0, ' ');
}

void end_line(std::string& text) {
  text.erase(text.find_last_not_of(' ') + 1);
  text += '\n';
}

// "a\nb" with `indent` spaces in front of b.
std::string indented(const std::string& lines, std::size_t indent) {
  std::string text;
  for (const char c : lines) {
    text += c;
    if (c == '\n') text.append(indent, ' ');
  }
  return text;
}

}  // namespace

TextTable::TextTable(std::string name, std::vector<Column> columns) : columns_(std::move(columns)) {
  Row& header = rows_.emplace_back(Row{.name = std::move(name), .cells = {}});
  for (const Column& column : columns_) header.cells.push_back(column.header);
}

void TextTable::add(std::string name, std::vector<std::string> cells) {
  check(cells.size() == columns_.size(), "a row of a table has a cell for every column");
  rows_.push_back({std::move(name), std::move(cells)});
}

std::size_t TextTable::widest(std::size_t column) const {
  std::size_t most = 0;
  for (const Row& row : rows_) most = std::max(most, columns_of(row.cells[column]));
  return most;
}

std::size_t TextTable::widest_name() const {
  std::size_t most = 0;
  for (const Row& row : rows_) most = std::max(most, columns_of(row.name));
  return most;
}

bool TextTable::wraps(std::size_t column) const {
  return column + 1 == columns_.size() && columns_[column].align == Align::kLeft;
}

// As many columns as fit beside the names; one at least.
TextTable::Block TextTable::block_from(std::size_t first, std::size_t width) const {
  Block block{.first = first, .end = first, .width = width, .name_width = 0, .widths = {}};
  const std::size_t least_name = std::min(widest_name(), kLeastName);
  std::size_t used = 0;
  while (block.end < columns_.size()) {
    const std::size_t own = widest(block.end);
    const std::size_t least = wraps(block.end) ? std::min(own, kLeastWords) : own;
    if (block.end > first && least_name + used + kGap + least > width) break;
    // Words take what is left when the names have their room.
    const std::size_t names = std::min(widest_name(), width / 3);
    const std::size_t taken = names + used + kGap;
    block.widths.push_back(own <= least ? own : std::clamp(width > taken ? width - taken : 0, least, own));
    used += kGap + block.widths.back();
    ++block.end;
  }
  block.name_width = std::min(widest_name(), width > used + least_name ? width - used : least_name);
  return block;
}

void TextTable::print_row(const Row& row, const Block& block, std::string& text) const {
  std::string line = row.name;
  if (columns_of(row.name) > block.name_width) {
    text += wrap(row.name, block.width) + '\n';
    line.clear();
  }
  line += padding(line, block.name_width);
  std::size_t at = block.name_width;
  for (std::size_t column = block.first; column < block.end; ++column) {
    const std::size_t width = block.widths[column - block.first];
    const std::string& cell = row.cells[column];
    line.append(kGap, ' ');
    at += kGap;
    if (wraps(column)) {
      line += indented(wrap(cell, width), at);
    } else {
      const std::string space = padding(cell, width);
      line += columns_[column].align == Align::kRight ? space + cell : cell + space;
    }
    at += width;
  }
  text += line;
  end_line(text);
}

std::string TextTable::text(std::size_t width) const {
  std::string text;
  std::size_t first = 0;
  do {
    const Block block = block_from(first, width);
    if (first > 0) text += '\n';
    for (const Row& row : rows_) print_row(row, block, text);
    first = block.end;
  } while (first < columns_.size());
  return text;
}

std::string hanging_line(std::string_view name, std::string_view words, std::size_t indent, std::size_t width) {
  std::string text(name);
  // A name without room has a line of its own.
  if (columns_of(name) > indent && !words.empty())
    text += '\n' + std::string(indent, ' ');
  else
    text += padding(name, indent);
  text += indented(wrap(words, width > indent ? width - indent : 1), indent);
  end_line(text);
  return text;
}

}  // namespace meshtrain
