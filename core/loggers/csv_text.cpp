#include "core/loggers/csv_text.h"

namespace fulmen::detail {

void append_csv_cell(std::string_view text, std::string& out) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) {
    out += text;
    return;
  }
  out += '"';
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  out += '"';
}

std::vector<std::string> split_csv_record(std::string_view record) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t at = 0; at < record.size(); ++at) {
    const char c = record[at];
    if (quoted && c == '"' && at + 1 < record.size() && record[at + 1] == '"') {
      cells.back() += '"';
      ++at;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  return cells;
}

std::vector<std::string_view> split_csv_records(std::string_view text) {
  std::vector<std::string_view> records;
  bool quoted = false;
  std::size_t start = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '"') quoted = !quoted;
    if (text[at] != '\n' || quoted) continue;
    records.push_back(text.substr(start, at - start));
    start = at + 1;
  }
  return records;
}

}  // namespace fulmen::detail
