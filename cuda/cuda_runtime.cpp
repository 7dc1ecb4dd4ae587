// CUDA without a header of CUDA.
#include <ATen/Context.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>

#include "cuda/device_runtime.h"

namespace fulmen::detail {
namespace {

class CudaRuntime final : public DeviceRuntime {
 public:
  int device_count() const override { return at::hasCUDA() ? guard().deviceCount() : 0; }
  void select(c10::Device device) override { guard().setDevice(device); }
  void synchronize(c10::Device device) override { guard().synchronizeDevice(device.index()); }

  at::Tensor pin(const at::Tensor& tensor) override { return tensor.pin_memory(); }
  c10::Stream copy_stream(c10::Device device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = streams_.find(device.index());
    if (it != streams_.end()) return it->second;
    return streams_.emplace(device.index(), guard().getStreamFromGlobalPool(device)).first->second;
  }
  c10::Stream exchange_stream(c10::Stream stream) override {
    return guard().exchangeStream(stream);
  }
  void order(c10::Stream first, c10::Stream stream) override {
    c10::Event event(c10::kCUDA);
    event.record(first);
    event.block(stream);
  }
  void keep_for(const at::Tensor& tensor, c10::Stream stream) override {
    tensor.record_stream(stream);
  }

 private:
  // Made when it is used: without LibTorch's CUDA library there is none to make.
  static c10::impl::VirtualGuardImpl guard() { return c10::impl::VirtualGuardImpl(c10::kCUDA); }

  std::mutex mutex_;
  std::map<c10::DeviceIndex, c10::Stream> streams_;
};

}  // namespace

std::shared_ptr<DeviceRuntime> cuda_runtime() {
  return std::make_shared<CudaRuntime>();
}

}  // namespace fulmen::detail
