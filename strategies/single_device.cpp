#include "fulmen/strategies/single_device.h"

#include "fulmen/core/module/module_base.h"
#include "fulmen/core/support/accelerator.h"

namespace fulmen {

void SingleDeviceStrategy::setup_environment(Accelerator& accelerator) {
  device_ = accelerator.device(0);
}

void SingleDeviceStrategy::setup(ModuleBase& module, Stage) {
  module.to(device_);
  module.set_device(device_);
}

}  // namespace fulmen
