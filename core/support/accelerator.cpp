#include "fulmen/core/support/accelerator.h"

#include <torch/torch.h>

#include <mutex>

namespace fulmen {
namespace {

class CpuAccelerator final : public Accelerator {
 public:
  std::string_view name() const override { return "cpu"; }
  int device_count() const override { return 1; }
  c10::Device device(int) const override { return c10::Device(c10::kCPU); }
  void synchronize(c10::Device) override {}
  at::Tensor pin_memory(const at::Tensor& tensor) override { return tensor; }
  at::Tensor random_state(c10::Device) override {
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    return generator.get_state();
  }
  void set_random_state(c10::Device, const at::Tensor& state) override {
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
};

}  // namespace

void Accelerator::copy_batch(c10::Device, const BatchView&, const std::function<void()>& copy) {
  copy();
}

void Accelerator::add_backend(const GroupRequest&) {}

std::shared_ptr<Accelerator> cpu_accelerator() {
  return std::make_shared<CpuAccelerator>();
}

void seed_everything(std::uint64_t seed) {
  torch::manual_seed(seed);
}

}  // namespace fulmen
