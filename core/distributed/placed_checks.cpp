// What must agree on all ranks, compared before anybody relies on it.
#include <torch/torch.h>

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>
#include <string_view>

#include "core/distributed/same_everywhere.h"
#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/placed_parameters.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

namespace json = boost::json;
using Kind = Placement::Kind;

constexpr std::string_view kWhere = "The model";
constexpr std::size_t kMostNames = 5;

/// "(8, 4)", with "slice" for a dim that is sharded along one of the axes, and "(own shape)" for
/// what is local along one.
std::string describe_shape(const PlacedTensor& placed, const std::vector<std::string>& axes) {
  std::set<std::int64_t> sliced;
  for (const auto& axis : axes) {
    const auto& placement = placed.placements.at(axis);
    if (placement.kind == Kind::kLocal) return "(own shape)";
    if (placement.kind == Kind::kSharded) sliced.insert(placement.dim);
  }
  std::string text;
  for (std::int64_t dim = 0; dim < placed.tensor.dim(); ++dim) {
    text += dim == 0 ? "" : ", ";
    text += sliced.contains(dim) ? "slice" : std::to_string(placed.tensor.size(dim));
  }
  return "(" + text + ")";
}

/// What has to be the same on all ranks, in words: briefly, and the rest.
json::value describe(const PlacedTensor& placed, const std::vector<std::string>& axes) {
  std::ostringstream brief;
  brief << placed.name << " " << describe_shape(placed, axes) << " "
        << c10::getDtypeNames(placed.tensor.scalar_type()).first;
  std::ostringstream rest;
  rest << (placed.is_buffer || placed.tensor.requires_grad() ? "" : "frozen, ");
  const char* separator = "";
  for (const auto& [axis, placement] : placed.placements) {
    rest << separator << to_string(placement) << " over " << axis;
    separator = ", ";
  }
  for (const auto& alias : placed.aliases) rest << ", also named " << alias;
  return json::array{brief.str(), rest.str()};
}

/// The part [i][part] of a table of each rank; "nothing" where it is shorter.
std::vector<std::string> column(const std::vector<json::value>& tables,
                                std::string_view key,
                                std::size_t i,
                                std::size_t part) {
  std::vector<std::string> result;
  for (const auto& table : tables) {
    const auto& list = table.at(key).as_array();
    result.emplace_back(i < list.size() ? std::string(list[i].at(part).as_string()) : "nothing");
  }
  return result;
}

/// The first difference among the lists under `key`; empty if there is none.
std::string first_difference(const std::vector<json::value>& tables,
                             std::string_view key,
                             std::string_view what,
                             const std::vector<int>& ranks) {
  std::vector<std::string> counts;
  std::size_t longest = 0;
  for (const auto& table : tables) {
    longest = std::max(longest, table.at(key).as_array().size());
    counts.push_back(std::to_string(table.at(key).as_array().size()));
  }
  std::ostringstream text;
  if (!detail::are_equal(counts)) {
    text << "the number of " << what << "s is " << detail::list_versions(counts, ranks)
         << "; the first ";
    text << "that differs: ";
  }
  for (std::size_t i = 0; i < longest; ++i) {
    auto versions = column(tables, key, i, 0);
    const auto rest = column(tables, key, i, 1);
    if (detail::are_equal(versions) && detail::are_equal(rest)) continue;
    if (detail::are_equal(versions)) {
      for (std::size_t rank = 0; rank < rest.size(); ++rank) versions[rank] += ", " + rest[rank];
    }
    text << what << " " << i << " is " << detail::list_versions(versions, ranks);
    return text.str();
  }
  return {};
}

/// Flat, zeros where a gradient is missing.
at::Tensor flat_gradient(const at::Tensor& parameter, c10::TensorOptions options) {
  const auto& gradient = parameter.grad();
  if (!gradient.defined()) return at::zeros({parameter.numel()}, options);
  return gradient.detach().reshape(-1).to(options);
}

/// How far apart correct gradients may be, relative to the largest: the rounding of sums in another
/// order is far below it, a missing sum far above.
double tolerance(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return std::sqrt(std::numeric_limits<double>::epsilon());
    case at::kBFloat16:
      return std::sqrt(static_cast<double>(std::numeric_limits<c10::BFloat16>::epsilon()));
    case at::kHalf:
      return std::sqrt(static_cast<double>(std::numeric_limits<c10::Half>::epsilon()));
    default:
      return std::sqrt(std::numeric_limits<float>::epsilon());
  }
}

/// Names of those of `list` whose gradients differ in the group. One collective.
void compare_gradients(const std::vector<const PlacedTensor*>& list,
                       const ProcessGroup& group,
                       std::vector<std::string>& different) {
  if (list.empty()) return;
  const auto is_double = [](const auto* placed) {
    return placed->tensor.scalar_type() == at::kDouble;
  };
  const auto options = at::dtype(std::ranges::any_of(list, is_double) ? at::kDouble : at::kFloat)
                           .device(list.front()->tensor.device());
  std::vector<at::Tensor> flat;
  std::vector<std::int64_t> sizes;
  for (const auto* placed : list) {
    flat.push_back(flat_gradient(placed->tensor, options));
    sizes.push_back(placed->tensor.numel());
  }
  const auto joint = at::cat(flat);
  auto bounds = at::stack({joint, -joint});
  all_reduce(bounds, ReduceOp::kMax, group);
  const auto parts = bounds.split_with_sizes(sizes, 1);
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (sizes[i] == 0) continue;
    const auto largest = parts[i].abs().max().item<double>();
    const auto spread = (parts[i][0] + parts[i][1]).max().item<double>();
    if (spread > tolerance(list[i]->tensor.scalar_type()) * largest) {
      different.push_back(list[i]->name);
    }
  }
}

std::string describe_different(const std::vector<std::string>& names, const std::string& axis) {
  std::ostringstream text;
  text << "the gradients of ";
  for (std::size_t i = 0; i < names.size() && i < kMostNames; ++i) {
    text << (i == 0 ? "" : ", ") << names[i];
  }
  if (names.size() > kMostNames) text << " and " << names.size() - kMostNames << " more";
  text << " differ along the axis \"" << axis << "\". Nobody marked these parameters, so they are "
       << "replicated: the gradient of each rank should be the whole one. In "
       << "configure_sharded_model(), call mark_as_shared(parameter, \"" << axis << "\") if each "
       << "rank computes a term of the gradient, mark_placement(parameter, \"" << axis
       << "\", local()) if each rank has a parameter of its own, or mark_placement(parameter, \""
       << axis << "\", replicated()) if the difference is meant.";
  return text.str();
}

}  // namespace

void PlacedParameters::check_equal_on_all_ranks() const {
  const auto all = mesh_->world()->all();
  if (all.size() == 1) return;
  std::vector<std::string> axes;
  for (const auto& axis : mesh_->axes()) {
    const bool is_compared = axis.size > 1 && axis.default_placement.kind != Kind::kLocal;
    if (is_compared) axes.push_back(axis.name);
  }
  const auto group = mesh_->group(axes);
  json::object table{{"parameters", json::array()}, {"buffers", json::array()}};
  for (const auto& placed : parameters_) {
    table["parameters"].as_array().push_back(describe(placed, axes));
  }
  for (const auto& placed : buffers_) {
    table["buffers"].as_array().push_back(describe(placed, axes));
  }
  std::string problem;
  if (!detail::is_same_everywhere(json::serialize(table), group)) {
    const auto tables = all_gather_object(table, group);
    problem = first_difference(tables, "parameters", "parameter", group.ranks());
    if (problem.empty()) problem = first_difference(tables, "buffers", "buffer", group.ranks());
    problem = "is not the same on all ranks: " + problem +
              ". Every rank must build the same modules, with the same options and in the same "
              "order.";
    if (group == all) fail<DistributedError>(kWhere, problem);
  }
  if (!(group == all)) agree_or_fail(kWhere, problem, all);
}

void PlacedParameters::check_not_replaced(const torch::nn::Module& module) const {
  std::string problem;
  const auto now = module.named_parameters();
  const auto check = [&](const std::string& name, const at::Tensor& tensor) {
    const auto* found = now.find(name);
    if (!problem.empty() || (found != nullptr && found->is_same(tensor))) return;
    problem = name + (found == nullptr ? " was removed" : " was replaced");
  };
  std::size_t names = 0;
  for (const auto& placed : parameters_) {
    check(placed.name, placed.tensor);
    for (const auto& alias : placed.aliases) check(alias, placed.tensor);
    names += 1 + placed.aliases.size();
  }
  if (problem.empty() && now.size() != names) {
    for (const auto& item : now) {
      if (problem.empty() && find(item.value()) == nullptr) problem = item.key() + " was added";
    }
  }
  if (!problem.empty()) {
    problem +=
        " after the strategy was set up, so its gradient would not be reduced. Change a "
        "parameter's values in place under at::NoGradGuard, or make it anew in "
        "configure_sharded_model() or before.";
  }
  agree_or_fail(kWhere, problem, mesh_->world()->all());
}

void PlacedParameters::check_unmarked_gradients() const {
  // Bounds the memory: two copies of so many elements.
  constexpr std::int64_t kMostElements = std::int64_t{1} << 24;
  std::string problem;
  for (const auto& axis : mesh_->axes()) {
    if (*axis.kind != AxisKind::kModelLike || axis.size == 1) continue;
    if (axis.default_placement.kind != Kind::kReplicated) continue;
    const auto group = mesh_->group(axis.name);
    std::vector<std::string> different;
    std::vector<const PlacedTensor*> list;
    std::int64_t elements = 0;
    for (const auto& placed : parameters_) {
      const auto& marked = placed.marked_axes;
      const bool is_marked = std::ranges::find(marked, axis.name) != marked.end();
      if (is_marked || !placed.tensor.requires_grad()) continue;
      if (elements + placed.tensor.numel() > kMostElements) {
        compare_gradients(list, group, different);
        list.clear();
        elements = 0;
      }
      list.push_back(&placed);
      elements += placed.tensor.numel();
    }
    compare_gradients(list, group, different);
    if (problem.empty() && !different.empty()) problem = describe_different(different, axis.name);
  }
  agree_or_fail(kWhere, problem, mesh_->world()->all());
}

}  // namespace fulmen
