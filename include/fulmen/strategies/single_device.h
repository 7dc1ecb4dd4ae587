#pragma once

#include <memory>
#include <string>

#include "fulmen/core/distributed/strategy.h"

namespace fulmen {

/// One process, one device: nothing is launched, reduced or sharded.
class SingleDeviceStrategy final : public Strategy {
 public:
  static std::shared_ptr<SingleDeviceStrategy> make() {
    return std::make_shared<SingleDeviceStrategy>();
  }

  std::string key() const override { return "single_device"; }
  void setup_environment(Accelerator& accelerator) override;
  c10::Device root_device() const override { return device_; }
  void setup(ModuleBase& module, Stage stage) override;

 private:
  c10::Device device_ = c10::Device(c10::kCPU);
};

}  // namespace fulmen
