#pragma once

#include <string>
#include <vector>

#include "fulmen/core/optim/optimizer.h"

namespace fulmen {

/// Hyperparameters of `optimizer` that `state` does not hold, as "lr of group 0": it was written
/// before the option existed. load_state_dict leaves them as they are, and the caller should warn.
std::vector<std::string> missing_hyperparameters(const Optimizer& optimizer,
                                                 const StateDict& state);

}  // namespace fulmen
