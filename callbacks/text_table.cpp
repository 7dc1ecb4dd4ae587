#include "callbacks/text_table.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace fulmen::detail {

TextTable::TextTable(const std::vector<std::string>& left_aligned_columns) {
  for (const auto& title : left_aligned_columns) add_column(title, Align::kLeft);
}

void TextTable::add_column(std::string title, Align align) {
  titles_.push_back(std::move(title));
  aligns_.push_back(align);
}

void TextTable::add_row(std::vector<std::string> cells) {
  cells.resize(titles_.size());
  rows_.push_back(std::move(cells));
}

std::string TextTable::str() const {
  std::vector<std::size_t> widths;
  for (std::size_t column = 0; column < titles_.size(); ++column) {
    std::size_t width = titles_[column].size();
    for (const auto& row : rows_) width = std::max(width, row[column].size());
    widths.push_back(width);
  }
  std::string rule = "+";
  for (const auto width : widths) rule += std::string(width + 2, '-') + "+";
  const auto line_of = [&](const std::vector<std::string>& cells) {
    std::string line = "|";
    for (std::size_t column = 0; column < cells.size(); ++column) {
      const std::string padding(widths[column] - cells[column].size(), ' ');
      const bool right = aligns_[column] == Align::kRight;
      line += " " + (right ? padding + cells[column] : cells[column] + padding) + " |";
    }
    return line;
  };
  std::string text = rule + "\n" + line_of(titles_) + "\n" + rule;
  for (const auto& row : rows_) text += "\n" + line_of(row);
  return text + "\n" + rule;
}

std::string format_number(const char* format, double value) {
  std::array<char, 512> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, value);
  return buffer.data();
}

std::string with_separators(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::ptrdiff_t first = value < 0 ? 1 : 0;
  for (auto at = std::ssize(text) - 3; at > first; at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

}  // namespace fulmen::detail
