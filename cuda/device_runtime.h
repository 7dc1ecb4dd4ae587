#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>

namespace fulmen::detail {

/// What the accelerator needs of a kind of device. CUDA's goes through c10's device-neutral guards;
/// tests have one that records its calls.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;
  virtual int device_count() const = 0;
  /// The device that this thread's work goes to unless it names another.
  virtual void select(c10::Device device) = 0;
  virtual void synchronize(c10::Device device) = 0;

  virtual at::Tensor pin(const at::Tensor& tensor) = 0;
  /// One for each device, which nothing else uses.
  virtual c10::Stream copy_stream(c10::Device device) = 0;
  /// Makes a stream the current one of its device; returns the one that was.
  virtual c10::Stream exchange_stream(c10::Stream stream) = 0;
  /// What is queued on `stream` from now on starts after all that is on `first` by now.
  virtual void order(c10::Stream first, c10::Stream stream) = 0;
  /// The tensor's memory is not used anew before what is on `stream` by its end is done.
  virtual void keep_for(const at::Tensor& tensor, c10::Stream stream) = 0;
};

std::shared_ptr<DeviceRuntime> cuda_runtime();

}  // namespace fulmen::detail
