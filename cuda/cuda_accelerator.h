#pragma once

#include <memory>

#include "cuda/device_runtime.h"
#include "fulmen/core/support/accelerator.h"

namespace fulmen::detail {

class CudaAccelerator final : public Accelerator {
 public:
  /// Throws ConfigError if the runtime has no device.
  explicit CudaAccelerator(std::shared_ptr<DeviceRuntime> runtime);

  std::string_view name() const override { return "cuda"; }
  int device_count() const override { return runtime_->device_count(); }
  /// That of the local rank, which becomes the thread's device. Throws ConfigError if there are not
  /// so many.
  c10::Device device(int index) const override;
  void synchronize(c10::Device device) override { runtime_->synchronize(device); }
  at::Tensor pin_memory(const at::Tensor& tensor) override;
  at::Tensor random_state(c10::Device device) override;
  void set_random_state(c10::Device device, const at::Tensor& state) override;
  void copy_batch(c10::Device device,
                  const BatchView& batch,
                  const std::function<void()>& copy) override;
  void add_backend(const GroupRequest& request) override;

 private:
  std::shared_ptr<DeviceRuntime> runtime_;
};

/// Throws ConfigError for a version of NCCL that this was not compiled with.
void add_nccl(const GroupRequest& request);

}  // namespace fulmen::detail
