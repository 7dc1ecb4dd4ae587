#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "loop_state.h"

namespace fulmen::detail {

class Session;

/// What a batch can change before its update, as it was at the boundary before: position, random
/// state, buffers, open gradients. Kept only if a callback saves on exceptions.
struct Boundary {
  LoopState state;
  at::Tensor random_state;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;  ///< Tensor, its copy.
  std::vector<std::pair<at::Tensor, at::Tensor>>
      gradients;  ///< Parameter, copy of its gradient (may be undefined).

  void take(Session& session);
  void put_back(Session& session) const;
};

}  // namespace fulmen::detail
