#include "heat_data.h"

#include <numbers>

namespace heat {
namespace {

constexpr std::int64_t kWaves = 4;  // Along each side.

/// (samples, 1, grid, grid): sums of standing waves that are 0 around the domain, with random
/// amplitudes that fall with the wave number.
at::Tensor smooth_fields(const Problem& problem, at::Generator generator) {
  const auto point = torch::arange(1, problem.grid + 1, torch::kDouble) / (problem.grid + 1.0);
  const auto number = torch::arange(1, kWaves + 1, torch::kDouble);
  const auto waves = (std::numbers::pi * number.unsqueeze(1) * point).sin();  // (waves, grid)
  const auto random = at::rand({problem.samples, kWaves, kWaves}, generator, torch::kDouble);
  const auto amplitudes = (4 * random - 2) / (number.unsqueeze(1) + number);
  return waves.t().matmul(amplitudes).matmul(waves).unsqueeze(1);
}

/// Five-point Laplacian in units of 1 / (grid spacing)^2.
at::Tensor laplacian(const at::Tensor& u) {
  const auto padded = torch::constant_pad_nd(u, {1, 1, 1, 1});
  const auto shifted = [&](std::int64_t row, std::int64_t column) {
    return padded.narrow(2, row, u.size(2)).narrow(3, column, u.size(3));
  };
  return shifted(0, 1) + shifted(2, 1) + shifted(1, 0) + shifted(1, 2) - 4 * u;
}

}  // namespace

at::Tensor evolve(at::Tensor u, const at::Tensor& diffusivity, std::int64_t steps, double dt) {
  for (std::int64_t step = 0; step < steps; ++step) u = u + dt * diffusivity * laplacian(u);
  return u;
}

Fields solve(const Problem& problem) {
  const torch::NoGradGuard no_grad;
  const auto generator = at::detail::createCPUGenerator(problem.seed);
  const auto start = smooth_fields(problem, generator);
  const auto diffusivity = torch::sigmoid(2 * smooth_fields(problem, generator));
  const auto change = evolve(start, diffusivity, problem.steps, problem.dt) - start;
  const double unit = change.square().mean().sqrt().item<double>();
  return {.inputs = torch::cat({start, diffusivity}, 1), .targets = change / unit, .unit = unit};
}

}  // namespace heat
