#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace heat {

struct Problem {
  std::int64_t samples = 64;
  std::int64_t grid = 24;   ///< Inner points along each side of the domain.
  std::int64_t steps = 20;  ///< Time steps of the solver from input to target.
  /// In units of (grid spacing)^2 / (largest diffusivity); stable up to 0.25.
  double dt = 0.2;
  std::uint64_t seed = 1;
};

/// float64.
struct Fields {
  at::Tensor inputs;  ///< (samples, 2, grid, grid): temperature at time 0, diffusivity.
  /// (samples, 1, grid, grid): what all steps add to the temperature, divided by `unit`.
  at::Tensor targets;
  double unit = 1;  ///< Root mean square of what they add: that of the targets is 1.
};

/// du/dt = diffusivity * laplace(u) on a rectangle, u = 0 around it, by explicit finite
/// differences. Both fields are (samples, 1, rows, columns), without the points around.
at::Tensor evolve(at::Tensor u, const at::Tensor& diffusivity, std::int64_t steps, double dt);

/// Evolves smooth random fields of random smooth diffusivity. The same seed gives the same fields
/// on every rank.
Fields solve(const Problem& problem);

}  // namespace heat
