#include "boundary.h"

#include <torch/torch.h>

#include "session.h"

namespace fulmen::detail {

void Boundary::take(Session& session) {
  state = session.state;
  random_state = session.accelerator->random_state(session.strategy().root_device());
  buffers.clear();
  for (const auto& buffer : session.module->buffers()) {
    if (buffer.defined()) buffers.emplace_back(buffer, buffer.detach().clone());
  }
  gradients.clear();
  // Outside a window the next step drops gradients anyway; in manual optimization the user decides
  // that.
  const bool open = session.state.window_open() ||
                    session.module->optimization_mode() == OptimizationMode::kManual;
  for (const auto& [name, parameter] : session.distinct_parameters()) {
    const auto& gradient = parameter.grad();
    gradients.emplace_back(parameter,
                           open && gradient.defined() ? gradient.detach().clone() : at::Tensor());
  }
}

void Boundary::put_back(Session& session) const {
  at::NoGradGuard no_grad;
  session.state = state;
  session.accelerator->set_random_state(session.strategy().root_device(), random_state);
  for (const auto& [buffer, copy] : buffers) at::Tensor(buffer).copy_(copy);
  for (const auto& [parameter, gradient] : gradients)
    at::Tensor(parameter).mutable_grad() = gradient;
}

}  // namespace fulmen::detail
