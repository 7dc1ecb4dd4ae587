#include "heat_data.h"

namespace heat {
namespace {

/// (samples, 1, grid, grid): sums of a few waves, whose amplitudes and phases follow from the
/// number of the sample.
at::Tensor smooth_fields(std::int64_t samples, std::int64_t grid, double seed) {
  const auto x = torch::linspace(0, 1, grid, torch::kDouble);
  const auto n = torch::arange(samples, torch::kDouble).reshape({samples, 1, 1});
  auto field = torch::zeros({samples, grid, grid}, torch::kDouble);
  for (int wave = 1; wave <= 3; ++wave) {
    const auto amplitude = (n * 1.7 + seed + wave).sin() / wave;
    const auto a = (n * 0.9 + seed * wave).cos() * 3;
    const auto b = (n * 1.3 - seed * wave).sin() * 3;
    field += amplitude * (x.reshape({1, grid, 1}) * (2.0 * wave) + a).sin() *
             (x.reshape({1, 1, grid}) * (3.0 * wave) + b).cos();
  }
  return field.unsqueeze(1);
}

/// Five-point Laplacian with zeros around the square.
at::Tensor laplacian(const at::Tensor& u) {
  const auto padded = torch::constant_pad_nd(u, {1, 1, 1, 1});
  const auto size = u.size(2);
  const auto shifted = [&](std::int64_t row, std::int64_t column) {
    return padded.narrow(2, row, size).narrow(3, column, size);
  };
  return shifted(0, 1) + shifted(2, 1) + shifted(1, 0) + shifted(1, 2) - 4 * u;
}

}  // namespace

Fields solve(const Problem& problem) {
  const torch::NoGradGuard no_grad;
  const auto start = smooth_fields(problem.samples, problem.grid, 0.4);
  const auto diffusivity = torch::sigmoid(smooth_fields(problem.samples, problem.grid, 2.1));
  auto u = start;
  for (std::int64_t step = 0; step < problem.steps; ++step)
    u = u + problem.dt * diffusivity * laplacian(u);
  return {.inputs = torch::cat({start, diffusivity}, 1), .targets = u};
}

}  // namespace heat
