#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace heat {

struct Problem {
  std::int64_t samples = 64;
  std::int64_t grid = 24;  ///< Points along each side.
  std::int64_t steps = 8;  ///< Time steps of the solver from input to target.
  double dt = 0.1;  ///< In units of (grid spacing)^2 / (largest diffusivity): stable below 0.25.
};

/// Inputs (samples, 2, grid, grid): the temperature at time 0 and the diffusivity. Targets
/// (samples, 1, grid, grid): the temperature after `steps` steps.
struct Fields {
  at::Tensor inputs;
  at::Tensor targets;
};

/// Solves du/dt = k(x) laplace(u) on the unit square, u = 0 outside, by explicit finite differences
/// in float64, from smooth random fields. The same on every platform: no random generator is used.
Fields solve(const Problem& problem);

}  // namespace heat
