#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace c10d {
class ProcessGroup;
class Store;
}  // namespace c10d

namespace fulmen {

class BatchView;

/// A group of ranks that is being made; `store` is its own.
struct GroupRequest {
  c10d::ProcessGroup& group;
  c10::intrusive_ptr<c10d::Store> store;
  int rank;
  int size;
  std::chrono::milliseconds timeout;  ///< Of each collective.
};

/// All that differs between kinds of devices. Core assumes nothing about the CPU but through this.
class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual std::string_view name() const = 0;  ///< "cpu", "cuda".
  virtual int device_count() const = 0;
  virtual c10::Device device(int index) const = 0;
  /// Waits for the work queued on the device.
  virtual void synchronize(c10::Device device) = 0;
  /// A copy in memory from which transfers do not block; the tensor itself where there is no such
  /// thing.
  virtual at::Tensor pin_memory(const at::Tensor& tensor) = 0;
  /// The device's default generator as a byte tensor on the CPU.
  virtual at::Tensor random_state(c10::Device device) = 0;
  virtual void set_random_state(c10::Device device, const at::Tensor& state) = 0;
  /// Runs `copy`, which moves the batch from the CPU to a device that is not the CPU; what is
  /// computed there afterwards sees the copy. Base: no more than that.
  virtual void copy_batch(c10::Device device,
                          const BatchView& batch,
                          const std::function<void()>& copy);
  /// Adds the device's own collectives to a group that has those of the CPU. All members call it.
  /// Base: there are none. Exceptions of c10d pass through.
  virtual void add_backend(const GroupRequest& request);
};

/// The CPU.
std::shared_ptr<Accelerator> cpu_accelerator();

/// Seeds every default generator of the process. Ranks get streams of their own in a run.
void seed_everything(std::uint64_t seed);

}  // namespace fulmen
