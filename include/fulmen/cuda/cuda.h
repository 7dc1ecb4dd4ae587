#pragma once

#include <cstdint>
#include <memory>

namespace fulmen {

class Accelerator;

/// NVIDIA's GPUs, for TrainerOptions::accelerator; of the library fulmen::cuda. Each rank takes the
/// GPU of its local rank. Batches are copied from pinned memory on a stream of their own, so that
/// the copy of a batch overlaps with the computation of the one before; groups of ranks get NCCL
/// beside Gloo, with the group's time limit. Throws ConfigError if there is no GPU that CUDA can
/// use; its device() does if the host has fewer GPUs than ranks, and a group does if NCCL's version
/// is another than this library was compiled with. Not tried on hardware yet (docs/cuda.md).
std::shared_ptr<Accelerator> cuda();

/// Memory of a GPU that LibTorch's allocator holds for this process, in bytes.
struct CudaMemory {
  std::int64_t allocated = 0;  ///< By tensors, now.
  std::int64_t reserved = 0;   ///< From the driver, now: tensors and what is kept for later ones.
  std::int64_t peak_allocated = 0;
  std::int64_t peak_reserved = 0;
};
/// Throws ConfigError for a GPU that is not there.
CudaMemory cuda_memory(int device = 0);
/// Lets both peaks begin at the present values. Throws as cuda_memory().
void reset_peak_cuda_memory(int device = 0);

}  // namespace fulmen
