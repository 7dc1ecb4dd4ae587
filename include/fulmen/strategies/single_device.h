#pragma once

#include <memory>
#include <string>

#include "fulmen/core/distributed/strategy.h"

namespace fulmen {

/// One process, one device: nothing is launched, reduced or sharded. Its mesh is {data: 1}.
class SingleDeviceStrategy final : public Strategy {
 public:
  static std::shared_ptr<SingleDeviceStrategy> make();

  std::string key() const override { return "single_device"; }
  void setup_environment(const EnvironmentRequest& request) override;
  const DeviceMesh& mesh() const override { return mesh_; }
  c10::Device root_device() const override { return device_; }
  void setup(ModuleBase& module, Stage stage) override;
  WindowVerdict finish_gradients(std::span<const at::Tensor> parameters,
                                 const WindowVote& vote) override;
  void reduce_gradients(std::span<const at::Tensor> /*parameters*/) override {}
  void synchronize_buffers(ModuleBase& /*module*/) override {}

 private:
  SingleDeviceStrategy();

  DeviceMesh mesh_;
  c10::Device device_ = c10::Device(c10::kCPU);
};

}  // namespace fulmen
