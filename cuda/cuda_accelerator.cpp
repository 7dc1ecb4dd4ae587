#include "cuda/cuda_accelerator.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <mutex>
#include <utility>

#include "fulmen/core/data/batch.h"
#include "fulmen/core/support/error.h"
#include "fulmen/cuda/cuda.h"

namespace fulmen {
namespace detail {
namespace {

constexpr std::string_view kWhere = "cuda";

at::Generator generator_of(c10::Device device) {
  at::globalContext().lazyInitDevice(device.type());
  return at::globalContext().defaultGenerator(device);
}

/// Copies go to another stream for its lifetime.
class CopyScope {
 public:
  CopyScope(DeviceRuntime& runtime, c10::Stream copies)
      : runtime_(runtime), copies_(copies), compute_(runtime.exchange_stream(copies)) {}
  ~CopyScope() { runtime_.exchange_stream(compute_); }
  CopyScope(const CopyScope&) = delete;
  CopyScope& operator=(const CopyScope&) = delete;
  c10::Stream compute() const { return compute_; }

 private:
  DeviceRuntime& runtime_;
  c10::Stream copies_;
  c10::Stream compute_;
};

}  // namespace

CudaAccelerator::CudaAccelerator(std::shared_ptr<DeviceRuntime> runtime)
    : runtime_(std::move(runtime)) {
  if (runtime_->device_count() > 0) return;
  fail<ConfigError>(kWhere,
                    "no GPU that CUDA can use is on this host. See what nvidia-smi prints, and ",
                    "whether LibTorch is one with CUDA; .accelerator = \"cpu\" needs none.");
}

c10::Device CudaAccelerator::device(int index) const {
  const auto count = runtime_->device_count();
  if (index < 0 || index >= count) {
    fail<ConfigError>(kWhere,
                      "local rank ",
                      index,
                      " has no GPU of its own: this host has ",
                      count,
                      ". Start at most ",
                      count,
                      " ranks on it (.devices, --nproc-per-node), or see CUDA_VISIBLE_DEVICES.");
  }
  const c10::Device device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
  runtime_->select(device);
  return device;
}

at::Tensor CudaAccelerator::pin_memory(const at::Tensor& tensor) {
  const bool can_be = tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided;
  return can_be ? runtime_->pin(tensor) : tensor;
}

at::Tensor CudaAccelerator::random_state(c10::Device device) {
  auto generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void CudaAccelerator::set_random_state(c10::Device device, const at::Tensor& state) {
  auto generator = generator_of(device);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

/// The copies do not wait for the computation that goes on, only the next one for the copies. The
/// memory comes from the stream of the copies, so it must be kept until the computation is done.
void CudaAccelerator::copy_batch(c10::Device device,
                                 const BatchView& batch,
                                 const std::function<void()>& copy) {
  batch.for_each_tensor([&](at::Tensor& tensor) { tensor = pin_memory(tensor); });
  const auto copies = runtime_->copy_stream(device);
  const CopyScope scope(*runtime_, copies);
  copy();
  runtime_->order(copies, scope.compute());
  batch.for_each_tensor([&](at::Tensor& tensor) {
    if (tensor.defined() && tensor.device() == device) runtime_->keep_for(tensor, scope.compute());
  });
}

void CudaAccelerator::add_backend(const GroupRequest& request) {
  add_nccl(request);
}

namespace {

c10::DeviceAllocator& allocator_of(int device) {
  const auto count = cuda_runtime()->device_count();
  if (device < 0 || device >= count)
    fail<ConfigError>("cuda_memory", "GPU ", device, " is not there: this host has ", count, ".");
  at::globalContext().lazyInitDevice(c10::kCUDA);
  return *c10::getDeviceAllocator(c10::kCUDA);
}

}  // namespace
}  // namespace detail

std::shared_ptr<Accelerator> cuda() {
  return std::make_shared<detail::CudaAccelerator>(detail::cuda_runtime());
}

CudaMemory cuda_memory(int device) {
  const auto stats =
      detail::allocator_of(device).getDeviceStats(static_cast<c10::DeviceIndex>(device));
  constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {.allocated = stats.allocated_bytes[kAll].current,
          .reserved = stats.reserved_bytes[kAll].current,
          .peak_allocated = stats.allocated_bytes[kAll].peak,
          .peak_reserved = stats.reserved_bytes[kAll].peak};
}

void reset_peak_cuda_memory(int device) {
  detail::allocator_of(device).resetPeakStats(static_cast<c10::DeviceIndex>(device));
}

}  // namespace fulmen
