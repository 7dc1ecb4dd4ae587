#pragma once

#include <map>
#include <span>
#include <string>

#include "fulmen/core/module/trainer_context.h"

namespace fulmen {

/// The results of validate or test as a table in ASCII, one row a metric, one column a loader
/// (results[i] is loader i's). Names lose their "/dataloader_idx_i". Values have 7 significant
/// digits. Empty if there are no metrics.
std::string format_results_table(Stage stage,
                                 std::span<const std::map<std::string, double>> results);

}  // namespace fulmen
