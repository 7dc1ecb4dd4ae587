// What the accelerator asks of the device, without one.
#include "cuda/cuda_accelerator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fulmen/core/data/batch.h"
#include "fulmen/core/support/error.h"
#include "fulmen/cuda/cuda.h"
#include "tests/core/distributed/error_text.h"

namespace fulmen {
namespace detail {

void add_nccl(const GroupRequest&) {
  throw std::logic_error("NCCL");
}

}  // namespace detail

namespace {

using detail::CudaAccelerator;
using ::testing::ElementsAre;
using testing::error_text;
using testing::expect_parts;
using ::testing::IsEmpty;

constexpr c10::StreamId kCompute = 1, kCopies = 2;

/// Tensors stay on the CPU.
class Recorder final : public detail::DeviceRuntime {
 public:
  explicit Recorder(int devices) : devices_(devices) {}
  int device_count() const override { return devices_; }
  void select(c10::Device device) override { say("select", device.index()); }
  void synchronize(c10::Device device) override { say("synchronize", device.index()); }
  at::Tensor pin(const at::Tensor& tensor) override {
    say("pin", tensor.numel());
    return tensor.clone();
  }
  c10::Stream copy_stream(c10::Device device) override {
    return c10::Stream(c10::Stream::UNSAFE, device, kCopies);
  }
  c10::Stream exchange_stream(c10::Stream stream) override {
    say("stream", stream.id());
    const auto before = std::exchange(current_, stream.id());
    return c10::Stream(c10::Stream::UNSAFE, stream.device(), before);
  }
  void order(c10::Stream first, c10::Stream stream) override {
    calls.push_back("order " + std::to_string(first.id()) + " " + std::to_string(stream.id()));
  }
  void keep_for(const at::Tensor& tensor, c10::Stream stream) override {
    calls.push_back("keep " + std::to_string(tensor.numel()) + " for " +
                    std::to_string(stream.id()));
  }
  void say(const std::string& what, std::int64_t number) {
    calls.push_back(what + " " + std::to_string(number));
  }

  std::vector<std::string> calls;

 private:
  int devices_;
  c10::StreamId current_ = kCompute;
};

TEST(CudaAccelerator, NeedsAGpu) {
  expect_parts(error_text<ConfigError>([] { CudaAccelerator(std::make_shared<Recorder>(0)); }),
               {"no GPU that CUDA can use", "nvidia-smi"});
}

TEST(CudaAccelerator, GivesEachLocalRankAGpuAndSaysIfThereAreTooFew) {
  const auto runtime = std::make_shared<Recorder>(2);
  const CudaAccelerator accelerator(runtime);
  EXPECT_EQ(accelerator.device(1), c10::Device(c10::kCUDA, 1));
  EXPECT_THAT(runtime->calls, ElementsAre("select 1"));
  expect_parts(error_text<ConfigError>([&] { accelerator.device(2); }),
               {"local rank 2", "this host has 2", "CUDA_VISIBLE_DEVICES"});
  EXPECT_THAT(runtime->calls, ElementsAre("select 1"));
}

TEST(CudaAccelerator, CopiesFromPinnedMemoryBesideTheComputation) {
  const auto runtime = std::make_shared<Recorder>(1);
  CudaAccelerator accelerator(runtime);
  // Stands for a device that these tensors are on, when they have been copied.
  const c10::Device device(c10::kCPU);
  Batch batch{.tensors = {at::zeros({2}), at::zeros({3})}};
  const void* before = batch.tensors[0].data_ptr();
  accelerator.copy_batch(device, BatchView(batch), [&] {
    EXPECT_NE(batch.tensors[0].data_ptr(), before);  // Those that were pinned are copied.
    runtime->calls.push_back("copy");
  });
  EXPECT_THAT(runtime->calls,
              ElementsAre("pin 2",
                          "pin 3",
                          "stream 2",
                          "copy",
                          "order 2 1",
                          "keep 2 for 1",
                          "keep 3 for 1",
                          "stream 1"));
}

TEST(CudaAccelerator, GoesBackToTheStreamOfTheComputationIfACopyThrows) {
  const auto runtime = std::make_shared<Recorder>(1);
  CudaAccelerator accelerator(runtime);
  Batch batch;
  EXPECT_THROW(
      accelerator.copy_batch(
          c10::Device(c10::kCPU), BatchView(batch), [] { throw std::runtime_error("no memory"); }),
      std::runtime_error);
  EXPECT_THAT(runtime->calls, ElementsAre("stream 2", "stream 1"));
}

TEST(CudaAccelerator, PinsOnlyWhatCanBe) {
  const auto runtime = std::make_shared<Recorder>(1);
  CudaAccelerator accelerator(runtime);
  EXPECT_FALSE(accelerator.pin_memory({}).defined());
  EXPECT_TRUE(accelerator.pin_memory(at::eye(2).to_sparse()).is_sparse());
  EXPECT_THAT(runtime->calls, IsEmpty());
}

TEST(Cuda, SaysThatThereIsNoGpuWhereLibTorchHasNone) {
  // This program is not linked with LibTorch's CUDA.
  EXPECT_THROW(cuda(), ConfigError);
  EXPECT_THROW(cuda_memory(0), ConfigError);
  EXPECT_THROW(reset_peak_cuda_memory(-1), ConfigError);
}

}  // namespace
}  // namespace fulmen
