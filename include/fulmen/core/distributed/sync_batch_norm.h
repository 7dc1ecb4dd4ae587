#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/options/batchnorm.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "fulmen/core/distributed/world.h"

namespace torch::nn {
template <std::size_t D, typename Derived>
class BatchNormImplBase;
}  // namespace torch::nn

namespace fulmen {

/// torch::nn::BatchNorm{1,2,3}d over the rows of all ranks of a group, with the same options,
/// parameters and buffers, for inputs (N, C, ...).
///
/// In training, mean and variance are those of all ranks' rows, by one collective in forward and
/// one in backward; so all ranks of the group call it equally often, in the same order. N may
/// differ and may be 0: that rank takes part, and its output is empty. Throws ConfigError on all
/// ranks if they have 1 value per channel, or none, in total. Statistics are float32, of float64
/// inputs float64. The gradient of the input is that of the sum of all ranks' losses; those of
/// weight and bias are this rank's part, which the strategy reduces as others. There is no second
/// derivative; asking for one throws. In evaluation, and on a group of one rank, it is BatchNorm.
///
/// A trainer's rank that has no batch left does not call its module: on loaders whose samples may
/// run out on some ranks before others, set drop_last.
class SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl> {
 public:
  /// Without a group: inside configure_sharded_model() the mesh's data_group(); elsewhere
  /// set_group() has to follow before the first forward in training, which throws ConfigError.
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& options,
                             std::optional<ProcessGroup> group = {});
  /// In the place of a BatchNorm{1,2,3}d: its options, its mode, the same parameters and buffers.
  template <std::size_t D, class Derived>
  explicit SyncBatchNormImpl(const torch::nn::BatchNormImplBase<D, Derived>& norm,
                             std::optional<ProcessGroup> group = {})
      : options(norm.options), group_(std::move(group)) {
    connect(
        norm.weight, norm.bias, {norm.running_mean, norm.running_var, norm.num_batches_tracked});
    train(norm.is_training());
  }

  at::Tensor forward(const at::Tensor& input);
  void set_group(ProcessGroup group) { group_ = std::move(group); }
  const std::optional<ProcessGroup>& group() const { return group_; }

  void reset() override;
  void reset_parameters();
  void reset_running_stats();
  void pretty_print(std::ostream& stream) const override;

  // As in BatchNorm; what the options leave out is undefined.
  torch::nn::BatchNormOptions options;
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
  at::Tensor num_batches_tracked;

 private:
  struct Buffers {
    at::Tensor mean = {};
    at::Tensor var = {};
    at::Tensor count = {};
  };
  void connect(const at::Tensor& its_weight, const at::Tensor& its_bias, const Buffers& its);
  void check(const at::Tensor& input) const;
  at::Tensor forward_alone(const at::Tensor& input);
  at::Tensor forward_jointly(const at::Tensor& input, const ProcessGroup& group);
  /// Counts this batch; how much it changes the running values.
  double next_factor();

  std::optional<ProcessGroup> group_;
};

/// SyncBatchNorm(torch::nn::BatchNormOptions(64).momentum(0.01), group), or SyncBatchNorm(64).
TORCH_MODULE(SyncBatchNorm);

/// Replaces the BatchNorm1d, 2d and 3d inside `module` by SyncBatchNorm with the same parameters
/// and buffers: children of Sequential, ModuleList and ModuleDict, and children that only their
/// parent's list of children holds. Gives `group` to each SyncBatchNorm that has none. Returns how
/// many of both. Call it in configure_sharded_model(), on all ranks.
///
/// A member typed torch::nn::BatchNorm2d (or AnyModule) cannot be made to hold another module:
/// its forward would go on with the old one. So what something else still holds is a ConfigError
/// that names it, and then nothing is changed; make such a member a SyncBatchNorm. Classes derived
/// from BatchNorm are left as they are.
std::int64_t convert_sync_batch_norm(torch::nn::Module& module, const ProcessGroup& group);

}  // namespace fulmen
