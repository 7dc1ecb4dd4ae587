#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <memory>

#include "fulmen/core/distributed/collectives.h"

namespace fulmen {

/// How a bucket of gradients is summed over a group: an all-reduce by default. Derive from it to
/// compress or to count. It sees the gradients alone, multiplied by their weights and
/// GradientReducer::loss_scale(); sums of weights and votes go beside it. One object per rank;
/// called on the trainer's thread or inside backward on the thread that runs it, never by two at a
/// time, for the same buckets in the same order on all ranks.
class CommHook {
 public:
  virtual ~CommHook() = default;
  /// Starts the sum over `group` of `bucket`, a flat tensor. finish() is called once for it, after
  /// the buckets that were started before. `index` numbers the buckets of a step from 0.
  virtual void start(at::Tensor& bucket, int index, const ProcessGroup& group) = 0;
  /// Waits, and leaves the sum in the bucket given to start().
  virtual void finish(int index) = 0;
};

/// Sums in another dtype (bfloat16 or float16): half the bytes of float32, and less precision.
/// float16 sums are divided by the size of the group beforehand and multiplied after, so that they
/// do not overflow. Throws ConfigError for another dtype, and for complex gradients.
std::shared_ptr<CommHook> compress_to(at::ScalarType dtype);

}  // namespace fulmen
