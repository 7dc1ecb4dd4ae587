#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "fulmen/core/distributed/device_mesh.h"
#include "fulmen/core/distributed/placement.h"
#include "fulmen/fwd.h"

namespace fulmen {

/// A parameter or buffer of a module, once however many names it has, with its placement on each
/// axis of a mesh.
struct PlacedTensor {
  std::string name;                       ///< The first of its names in the module's order.
  std::vector<std::string> aliases = {};  ///< Its other names.
  at::Tensor tensor;
  PlacementMarks placements = {};             ///< One for each axis of the mesh without parts.
  std::vector<std::string> marked_axes = {};  ///< Those of them that come from a mark.
  bool is_buffer = false;
};

/// What a module's placements on a mesh mean: the one place where it is derived over which ranks a
/// gradient is reduced, how often a tensor counts in a norm, and what must be equal on all ranks.
/// Holds the tensors. Not thread-safe.
class PlacedParameters {
 public:
  PlacedParameters() = default;
  /// Reads the marks. A mark on an axis with parts counts for each part. Throws ConfigError that
  /// names the parameter: a mark for an axis that the mesh does not have, `shared` on a data-like
  /// axis, `sharded` along a dim that the tensor does not have.
  PlacedParameters(const torch::nn::Module& module, const DeviceMesh& mesh);

  const DeviceMesh& mesh() const { return *mesh_; }
  /// Distinct parameters, those that require no gradient too, in the order of registration.
  std::span<const PlacedTensor> parameters() const { return parameters_; }
  std::span<const PlacedTensor> buffers() const { return buffers_; }
  /// Null if it is none of the parameters.
  const PlacedTensor* find(const at::Tensor& parameter) const;

  /// Axes over which the gradient is summed in one collective: the data-like ones where the value
  /// is replicated, and those where it is shared.
  std::vector<std::string> gradient_axes(const PlacedTensor& placed) const;
  /// Axes over which the value is the same.
  std::vector<std::string> replica_axes(const PlacedTensor& placed) const;
  /// Axes over which it is not: sharded or local ones.
  std::vector<std::string> own_axes(const PlacedTensor& placed) const;
  /// Whether any parameter on any rank has own axes of more than one rank.
  bool has_own_parts() const;
  /// Whether this rank is the one that writes the tensor (or its slice) into a checkpoint.
  bool is_writer(const PlacedTensor& placed) const;

  /// Collective over the world. Compares names, shapes, dtypes, requires_grad and placements of all
  /// parameters and buffers; throws the same DistributedError on all ranks, which names the first
  /// difference and the ranks that differ. Shapes of local ones may differ, and those of slices
  /// along their dim. Along an axis whose default placement is `local` (stages of a pipeline) each
  /// rank has tensors of its own: it is compared with ranks at the same place on that axis only.
  void check_equal_on_all_ranks() const;
  /// Collective. Gives each tensor the value of the first rank along its replica axes.
  void broadcast_values() const;
  /// Collective. The same for the module's buffers as they are now, looked up by name.
  void broadcast_buffers(const torch::nn::Module& module) const;
  /// Collective over the world. Throws DistributedError on all ranks if a parameter was replaced,
  /// removed or added in the module on any of them since construction: what was set up would miss
  /// it.
  void check_not_replaced(const torch::nn::Module& module) const;

  /// Global norm of the gradients of `parameters`, each shard and each local parameter once, each
  /// value that is common to several ranks once. Collective over the own axes that occur among all
  /// parameters of the module; equal on all ranks. A tensor of float32 or wider that nobody has
  /// read yet. `norm_type` is above 0 or infinity.
  at::Tensor grad_norm(std::span<const at::Tensor> parameters, double norm_type = 2.0) const;
  /// Collective over the world. Compares reduced gradients along model-like axes on which the
  /// parameter is replicated because nobody marked it; a missing one counts as zeros. Throws the
  /// same DistributedError on all ranks if they differ by more than rounding (the root of the
  /// dtype's epsilon, times the largest magnitude): it names the parameters and mark_as_shared().
  void check_unmarked_gradients() const;

 private:
  std::shared_ptr<const DeviceMesh> mesh_;
  std::vector<PlacedTensor> parameters_;
  std::vector<PlacedTensor> buffers_;
  std::unordered_map<const void*, std::size_t> index_;  ///< By TensorImpl.
  /// The sets of own axes of more than one rank, in the same order on all ranks, and for each
  /// parameter which of them it has.
  std::vector<std::vector<std::string>> own_sets_;
  std::vector<std::size_t> own_set_of_;
};

}  // namespace fulmen
