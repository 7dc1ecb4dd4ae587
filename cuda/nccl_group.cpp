// The only file that sees headers of CUDA and NCCL.
#include <torch/csrc/cuda/nccl.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "cuda/cuda_accelerator.h"
#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

/// c10d's options hold a struct of NCCL, whose size changes with its version.
void check_version() {
  const auto version = torch::cuda::nccl::version();  // 16 bits of the minor, 16 of the patch.
  const auto major = version >> 32;
  const auto minor = version >> 16 & 0xffff;
  if (major == NCCL_MAJOR && minor == NCCL_MINOR) return;
  fail<ConfigError>("cuda",
                    "LibTorch has NCCL ",
                    major,
                    ".",
                    minor,
                    ", and fulmen::cuda was compiled with the header of ",
                    NCCL_MAJOR,
                    ".",
                    NCCL_MINOR,
                    ". Build it with -DFULMEN_NCCL_INCLUDE=<folder of the nccl.h that fits>.");
}

}  // namespace

void add_nccl(const GroupRequest& request) {
  check_version();
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = request.timeout;
  const auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(
      request.store, request.rank, request.size, options);
  request.group.setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
}

}  // namespace fulmen::detail
