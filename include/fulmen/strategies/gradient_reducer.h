#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fulmen/core/distributed/placed_parameters.h"
#include "fulmen/core/distributed/strategy.h"
#include "fulmen/strategies/comm_hook.h"

namespace fulmen {

struct GradientReducerOptions {
  /// A bucket is closed when it has reached this size; in models of less than 8 buckets at an
  /// eighth of their gradients, so that most of the sum overlaps with backward.
  std::int64_t bucket_cap_bytes = 25 << 20;
  /// Of the bucket that is reduced first; no other is closed below it.
  std::int64_t first_bucket_cap_bytes = 1 << 20;
  /// Sums gradients over the ranks in this dtype, for example float32 for parameters in bfloat16.
  /// (Those of a rank's own micro-batches add up in the dtype of the parameter.) Unset: in their
  /// own. Not together with a comm_hook.
  std::optional<at::ScalarType> reduce_dtype = {};
  std::shared_ptr<CommHook> comm_hook = {};  ///< Null: all-reduce.
};

/// Reduces gradients during backward: what c10d's Reducer is to PyTorch's DDP, but for placements
/// on a mesh, with weights, and once per window. docs/decisions/gradient_reducer.md says why it is
/// so.
///
/// Gradients live in flat buckets, one sequence of them for each (gradient group, dtype, device);
/// a parameter's .grad is a view of its bucket. In the last micro-batch of a window a bucket is
/// summed, asynchronously, as soon as all its gradients have come, in the same planned order on all
/// ranks: the reverse order of registration at first, then the order in which rank 0 saw gradients
/// come in the first window. From then until finish() the gradients of that bucket are undefined.
/// The last bucket of each group also carries, uncompressed, the sum of weights, the map of used
/// parameters and the votes. A parameter that this rank did not use sends zeros; one that nobody
/// used keeps an undefined gradient.
///
/// Calls, the same on all ranks: for each micro-batch start_backward, the backward, end_backward;
/// then finish. A rank without data calls finish alone. One object per rank; backward may run on
/// other threads than the calls. If a backward throws, the gradients of its window are of no use;
/// if it does so on all ranks at the same place, the next window is right again.
class GradientReducer {
 public:
  /// Parameters that require a gradient. Collective: makes the groups. Throws ConfigError for
  /// option values that are not allowed, or if there is nothing to reduce.
  GradientReducer(const PlacedParameters& parameters, GradientReducerOptions options = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// What each loss is to be multiplied by before backward, besides its weight: 1 / data-like
  /// ranks, or the next smaller power of two, which is exact in every dtype. finish() makes up for
  /// it; in the commonest case (one micro-batch of weight 1 on each of 2, 4, 8, ... ranks) there is
  /// nothing left to do.
  double loss_scale() const;
  /// Throws TrainingError if a parameter that was frozen at construction requires a gradient now.
  void start_backward(GradSync sync);
  /// Throws TrainingError that names the parameter if a gradient that other ranks have too is
  /// sparse.
  void end_backward();
  /// Sums what is not summed yet, waits, divides by the sum of weights (which agree along
  /// model-like axes; if it is 0, by nothing). Throws DistributedError.
  WindowVerdict finish(const WindowVote& vote);
  /// Whether the window that finish() ended has a gradient that some rank had for the first time.
  /// The same on all ranks.
  bool has_news() const;
  /// Sums the gradients of these parameters now and divides by the data-like ranks: for gradients
  /// of losses that were NOT multiplied by loss_scale(), after backwards of GradSync::kDefer or
  /// kManual. Each rank counts once, also one that has no gradient; a parameter that was reduced
  /// since the last backward is left alone. No weights, votes, plan or
  /// comm_hook: one collective for each group, dtype and device of these parameters, in the order
  /// of the module's. For manual optimization, and as the reference that tests compare with.
  void reduce_now(std::span<const at::Tensor> parameters);

  /// Parameters in the order in which they are dealt out to buckets; empty before it is learnt.
  /// Part of a checkpoint, since it decides the order of sums.
  std::vector<std::string> plan() const;
  /// Takes a plan over from the next window on, in place of learning one; the same on all ranks.
  /// Throws ConfigError if it is not a permutation of these parameters.
  void set_plan(const std::vector<std::string>& names);

  /// Parameters whose open gradients are those of all ranks (reduce_now, and no backward since):
  /// with plan(), what a checkpoint needs beside the gradients of manual optimization.
  std::vector<std::string> reduced() const;
  /// Throws ConfigError for a name that is none of these parameters.
  void set_reduced(const std::vector<std::string>& names);

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace fulmen
