#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fulmen::detail {

enum class Align { kLeft, kRight };

/// Rows of cells as text, framed with + - and |.
class TextTable {
 public:
  explicit TextTable(const std::vector<std::string>& left_aligned_columns);
  void add_column(std::string title, Align align);
  void add_row(std::vector<std::string> cells);
  /// Lines joined by '\n', none at the end.
  std::string str() const;

 private:
  std::vector<std::string> titles_;
  std::vector<Align> aligns_;
  std::vector<std::vector<std::string>> rows_;
};

/// A double by a printf format for one double: "%.7g".
std::string format_number(const char* format, double value);
/// 1234567 as "1,234,567".
std::string with_separators(std::int64_t value);

}  // namespace fulmen::detail
