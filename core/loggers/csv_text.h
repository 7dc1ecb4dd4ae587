#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fulmen::detail {

/// Appends a cell, in quotes if it needs them.
void append_csv_cell(std::string_view text, std::string& out);
/// Splits one record (without its line end) into cells.
std::vector<std::string> split_csv_record(std::string_view record);
/// The records of a file, without line ends. A last one that has no line end was cut off and is
/// left out.
std::vector<std::string_view> split_csv_records(std::string_view text);

}  // namespace fulmen::detail
