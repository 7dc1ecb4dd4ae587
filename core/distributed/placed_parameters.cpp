#include "fulmen/core/distributed/placed_parameters.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/shared_weights.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using Kind = Placement::Kind;

void check_placement(const PlacedTensor& placed, const MeshAxis& axis) {
  const auto& placement = placed.placements.at(axis.name);
  if (placement.kind == Kind::kShared && *axis.kind == AxisKind::kDataLike) {
    fail<ConfigError>(placed.name,
                      "is marked as shared over \"",
                      axis.name,
                      "\", but that axis is data-like: its ranks have different samples, and ",
                      "gradients are their mean. Only model-like axes have shared parameters.");
  }
  const auto dims = placed.tensor.dim();
  if (placement.kind == Kind::kSharded && (placement.dim < 0 || placement.dim >= dims)) {
    fail<ConfigError>(placed.name,
                      "is ",
                      to_string(placement),
                      " over \"",
                      axis.name,
                      "\", but its shape is ",
                      placed.tensor.sizes(),
                      ". The dim counts from 0 to the number of dims - 1.");
  }
}

/// A mark counts for each axis without parts that it covers.
void apply_mark(PlacedTensor& placed,
                const std::string& axis,
                const Placement& placement,
                const DeviceMesh& mesh) {
  const auto leaves = mesh.leaves(axis);
  if (leaves.empty()) {
    fail<ConfigError>(placed.name,
                      "is marked as ",
                      to_string(placement),
                      " over \"",
                      axis,
                      "\", but the mesh is ",
                      mesh.describe(),
                      ". Give the mesh that axis, with size 1 if it is not split.");
  }
  for (const auto& leaf : leaves) {
    const auto [it, is_new] = placed.placements.try_emplace(leaf, placement);
    if (is_new) placed.marked_axes.push_back(leaf);
    if (it->second == placement) continue;
    fail<ConfigError>(placed.name,
                      "has two marks that meet on the axis \"",
                      leaf,
                      "\": ",
                      to_string(it->second),
                      " and ",
                      to_string(placement),
                      ". unmark() one.");
  }
}

PlacedTensor place(const std::string& name,
                   const at::Tensor& tensor,
                   const DeviceMesh& mesh,
                   bool is_buffer) {
  PlacedTensor placed{.name = name, .tensor = tensor, .is_buffer = is_buffer};
  for (const auto& [axis, placement] : placement_marks(tensor)) {
    apply_mark(placed, axis, placement, mesh);
  }
  for (const auto& axis : mesh.axes()) {
    placed.placements.try_emplace(axis.name, axis.default_placement);
    check_placement(placed, axis);
  }
  return placed;
}

std::vector<PlacedTensor> collect(const torch::OrderedDict<std::string, at::Tensor>& tensors,
                                  const DeviceMesh& mesh,
                                  bool are_buffers) {
  std::vector<PlacedTensor> result;
  std::unordered_map<const void*, std::size_t> seen;
  for (const auto& item : tensors) {
    if (!item.value().defined()) continue;
    const auto [it, is_new] = seen.try_emplace(item.value().unsafeGetTensorImpl(), result.size());
    if (is_new) {
      result.push_back(place(item.key(), item.value(), mesh, are_buffers));
    } else {
      result[it->second].aliases.push_back(item.key());
    }
  }
  return result;
}

template <class Predicate>
std::vector<std::string> axes_where(const PlacedTensor& placed,
                                    const DeviceMesh& mesh,
                                    const Predicate& predicate) {
  std::vector<std::string> result;
  for (const auto& axis : mesh.axes()) {
    if (predicate(*axis.kind, placed.placements.at(axis.name).kind)) result.push_back(axis.name);
  }
  return result;
}

bool is_common(Kind kind) {
  return kind == Kind::kReplicated || kind == Kind::kShared;
}

/// Tensors that are common to the same ranks get the first rank's values together; sets in the
/// order of their names, which is the same on all ranks.
void broadcast_common(const DeviceMesh& mesh,
                      const std::vector<std::pair<std::vector<std::string>, at::Tensor>>& tensors) {
  std::map<std::vector<std::string>, std::vector<at::Tensor>> sets;
  for (const auto& [axes, tensor] : tensors) sets[axes].push_back(tensor);
  for (auto& [axes, list] : sets) broadcast_all(std::move(list), 0, mesh.group(axes));
}

}  // namespace

PlacedParameters::PlacedParameters(const torch::nn::Module& module, const DeviceMesh& mesh)
    : mesh_(std::make_shared<DeviceMesh>(mesh)),
      parameters_(collect(module.named_parameters(), mesh, false)),
      buffers_(collect(module.named_buffers(), mesh, true)) {
  std::map<std::vector<std::string>, std::vector<std::size_t>> sets;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    index_[parameters_[i].tensor.unsafeGetTensorImpl()] = i;
    auto axes = own_axes(parameters_[i]);
    std::erase_if(axes, [&](const auto& axis) { return mesh_->size(axis) == 1; });
    sets[std::move(axes)].push_back(i);
  }
  own_set_of_.resize(parameters_.size());
  for (const auto& [axes, members] : sets) {
    for (const auto i : members) own_set_of_[i] = own_sets_.size();
    own_sets_.push_back(axes);
  }
}

const PlacedTensor* PlacedParameters::find(const at::Tensor& parameter) const {
  const auto it = index_.find(parameter.unsafeGetTensorImpl());
  return it == index_.end() ? nullptr : &parameters_[it->second];
}

std::vector<std::string> PlacedParameters::gradient_axes(const PlacedTensor& placed) const {
  return axes_where(placed, *mesh_, [](AxisKind axis, Kind kind) {
    return kind == Kind::kShared || (axis == AxisKind::kDataLike && kind == Kind::kReplicated);
  });
}

std::vector<std::string> PlacedParameters::replica_axes(const PlacedTensor& placed) const {
  return axes_where(placed, *mesh_, [](AxisKind, Kind kind) { return is_common(kind); });
}

std::vector<std::string> PlacedParameters::own_axes(const PlacedTensor& placed) const {
  return axes_where(placed, *mesh_, [](AxisKind, Kind kind) { return !is_common(kind); });
}

bool PlacedParameters::is_writer(const PlacedTensor& placed) const {
  return std::ranges::all_of(replica_axes(placed),
                             [&](const auto& axis) { return mesh_->coordinate(axis) == 0; });
}

void PlacedParameters::broadcast_values() const {
  std::vector<std::pair<std::vector<std::string>, at::Tensor>> list;
  for (const auto* tensors : {&parameters_, &buffers_}) {
    for (const auto& placed : *tensors) list.emplace_back(replica_axes(placed), placed.tensor);
  }
  broadcast_common(*mesh_, list);
}

void PlacedParameters::broadcast_buffers(const torch::nn::Module& module) const {
  if (buffers_.empty()) return;
  // By name: a module may have put a new tensor in the old one's place.
  const auto now = module.named_buffers();
  std::vector<std::pair<std::vector<std::string>, at::Tensor>> list;
  for (const auto& placed : buffers_) {
    const auto* tensor = now.find(placed.name);
    if (tensor != nullptr && tensor->defined()) list.emplace_back(replica_axes(placed), *tensor);
  }
  broadcast_common(*mesh_, list);
}

}  // namespace fulmen
