#include "fulmen/callbacks/results_table.h"

#include "callbacks/text_table.h"

namespace fulmen {
namespace {

const char* title_of(Stage stage) {
  switch (stage) {
    case Stage::kFit:
      return "Metric";
    case Stage::kValidate:
      return "Validate metric";
    case Stage::kTest:
      return "Test metric";
    case Stage::kPredict:
      return "Predict metric";
  }
  return "Metric";
}

}  // namespace

std::string format_results_table(Stage stage,
                                 std::span<const std::map<std::string, double>> results) {
  std::map<std::string, std::vector<std::string>> rows;
  for (std::size_t loader = 0; loader < results.size(); ++loader) {
    const auto suffix = "/dataloader_idx_" + std::to_string(loader);
    for (const auto& [key, value] : results[loader]) {
      auto name = key;
      if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
      auto& cells = rows[name];
      cells.resize(results.size());
      cells[loader] = detail::format_number("%.7g", value);
    }
  }
  if (rows.empty()) return {};
  detail::TextTable table({title_of(stage)});
  for (std::size_t loader = 0; loader < results.size(); ++loader) {
    table.add_column("DataLoader " + std::to_string(loader), detail::Align::kRight);
  }
  for (auto& [name, cells] : rows) {
    cells.insert(cells.begin(), name);
    table.add_row(std::move(cells));
  }
  return table.str();
}

}  // namespace fulmen
