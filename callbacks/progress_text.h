#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace fulmen::detail {

/// What a progress line says.
struct ProgressText {
  std::string label = {};
  std::int64_t done = 0;
  std::int64_t counted = 0;  ///< Done within `seconds`.
  std::optional<std::int64_t> total = {};
  double seconds = 0;
  int bar_width = 0;  ///< 0: no bar.
  std::map<std::string, double> metrics = {};
};

/// "Epoch 3: 45/100 [====>     ] 12.3 it/s, eta 0:04, loss=0.123"; "45/?" if the total is unknown.
std::string format_progress(const ProgressText& text);

}  // namespace fulmen::detail
