#pragma once

#include <optional>

#include "fulmen/core/optim/torch_optimizer.h"

namespace fulmen::detail {

// The codec of one of LibTorch's own six optimizers; none for other classes.
std::optional<TorchOptimizerCodec> known_codec(const torch::optim::Optimizer& optimizer);

}  // namespace fulmen::detail
