#pragma once

#include <vector>

#include "../session.h"

namespace fulmen::detail {

/// predict: every loader in turn; what predict_step returns, moved to the CPU.
std::vector<AnyBatch> run_predict_loop(Session& session);

}  // namespace fulmen::detail
