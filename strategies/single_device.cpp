#include "fulmen/strategies/single_device.h"

#include <torch/torch.h>

#include "fulmen/core/distributed/environment.h"
#include "fulmen/core/module/module_base.h"
#include "fulmen/core/optim/clip_grad.h"
#include "fulmen/core/support/accelerator.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen {

std::shared_ptr<SingleDeviceStrategy> SingleDeviceStrategy::make() {
  return std::shared_ptr<SingleDeviceStrategy>(new SingleDeviceStrategy());
}

SingleDeviceStrategy::SingleDeviceStrategy() : mesh_({{.name = "data"}}, World::single()) {}

void SingleDeviceStrategy::setup_environment(const EnvironmentRequest& request) {
  if (request.devices != 1 || request.num_nodes != 1) {
    fail<ConfigError>(
        "TrainerOptions",
        "devices = ",
        request.devices,
        " and num_nodes = ",
        request.num_nodes,
        " need a strategy for several ranks: set .strategy = DdpStrategy::make(), or ",
        "devices and num_nodes to 1.");
  }
  // Legitimate, for example to compare with; but usually a forgotten option.
  if (const auto job = detect_job(process_environment()); job && job->topology.world_size > 1) {
    request.log.warning_once("SingleDeviceStrategy: ",
                             to_string(job->method),
                             " started ",
                             job->topology.world_size,
                             " ranks, but each trains on its own. Set .devices to the ranks of ",
                             "each host to train together.");
  }
  device_ = request.accelerator->device(0);
}

void SingleDeviceStrategy::setup(ModuleBase& module, Stage) {
  module.to(device_);
  module.set_device(device_);
}

WindowVerdict SingleDeviceStrategy::finish_gradients(std::span<const at::Tensor> parameters,
                                                     const WindowVote& vote) {
  const auto& weight = vote.weight;
  const bool one = !weight.tensor.defined() && weight.number == 1;
  if (auto gradients = gradients_of(parameters); vote.has_loss && !one && !gradients.empty()) {
    at::NoGradGuard no_grad;
    if (weight.tensor.defined()) {
      const auto total = weight.tensor + weight.number;
      for (auto& gradient : gradients) gradient.div_(total);
    } else {
      at::_foreach_div_(gradients, weight.number);
    }
  }
  return verdict_of(vote);
}

}  // namespace fulmen
