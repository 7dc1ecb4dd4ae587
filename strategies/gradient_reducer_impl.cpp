// The plan of the buckets: made at first from the order of registration, then once from the order
// in which gradients come.
#include "strategies/gradient_reducer_impl.h"

#include <algorithm>
#include <bit>
#include <boost/json/array.hpp>
#include <map>
#include <numeric>
#include <utility>

#include "core/distributed/twin_group.h"
#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

/// Stages of a pipeline have parameters of their own.
ProcessGroup ranks_with_the_same_parameters(const DeviceMesh& mesh) {
  std::vector<std::string> axes;
  for (const auto& axis : mesh.axes()) {
    if (axis.default_placement.kind != Placement::Kind::kLocal) axes.push_back(axis.name);
  }
  return mesh.group(axes);
}

}  // namespace

GradientReducer::Impl::Impl(const PlacedParameters& placed, GradientReducerOptions given)
    : options(std::move(given)),
      mesh(std::make_shared<DeviceMesh>(placed.mesh())),
      everyone(detail::twin_of(mesh->world()->all())),
      peers(ranks_with_the_same_parameters(*mesh)) {
  check_options();
  data_size = mesh->data_size();
  // A power of two is exact in every dtype that a loss may have.
  scale_size = static_cast<double>(std::bit_ceil(static_cast<unsigned>(mesh->data_size())));
  model_size = mesh->model_group().size();
  model_rank = mesh->model_group().rank();
  for (const auto& item : placed.parameters()) {
    if (item.tensor.requires_grad()) {
      // Not the groups that a module uses in its own backward: see twin_of.
      add_parameter(item, detail::twin_of(mesh->group(placed.gradient_axes(item))));
    } else {
      frozen.emplace_back(item.name, item.tensor);
    }
  }
  if (parameters.empty()) {
    fail<ConfigError>("GradientReducer",
                      "no parameter of the module requires a gradient, so there is nothing to "
                      "train.");
  }
  agree_on_sizes(placed);
  std::vector<std::size_t> reverse(parameters.size());
  std::iota(reverse.rbegin(), reverse.rend(), std::size_t{0});
  make_buckets(std::move(reverse));
}

void GradientReducer::Impl::check_options() const {
  if (options.bucket_cap_bytes < 1 || options.first_bucket_cap_bytes < 1) {
    fail<ConfigError>("GradientReducer",
                      "caps of buckets must be at least 1 byte, got ",
                      options.bucket_cap_bytes,
                      " and ",
                      options.first_bucket_cap_bytes,
                      ".");
  }
  if (!options.reduce_dtype) return;
  if (!at::isFloatingType(*options.reduce_dtype)) {
    fail<ConfigError>("GradientReducer",
                      "reduce_dtype must be a floating point type, got ",
                      *options.reduce_dtype,
                      ".");
  }
  if (options.comm_hook != nullptr) {
    fail<ConfigError>("GradientReducer",
                      "takes a reduce_dtype or a comm_hook, not both: the hook decides in which "
                      "dtype it sums.");
  }
}

void GradientReducer::Impl::add_parameter(const PlacedTensor& item, const ProcessGroup& group) {
  Parameter parameter{.name = item.name,
                      .tensor = item.tensor,
                      .group = group,
                      .bytes = static_cast<std::int64_t>(item.tensor.nbytes())};
  if (group.size() > 1) {
    const auto it = std::ranges::find(groups, group);
    parameter.group_index = static_cast<std::size_t>(it - groups.begin());
    if (it == groups.end()) {
      groups.push_back(group);
      group_counts.push_back(0);
    }
    parameter.slot_index = group_counts[parameter.group_index]++;
  }
  parameters.push_back(std::move(parameter));
}

/// Slices of a parameter may differ in size by a row. Ranks that close buckets at different places
/// would start them in different orders.
void GradientReducer::Impl::agree_on_sizes(const PlacedParameters& placed) {
  const auto is_whole = [&](const auto& item) { return placed.own_axes(item).empty(); };
  if (std::ranges::all_of(placed.parameters(), is_whole)) return;
  std::vector<std::int64_t> sizes;
  for (const auto& parameter : parameters) sizes.push_back(parameter.bytes);
  auto largest = at::tensor(sizes, at::kLong).to(parameters.front().tensor.device());
  all_reduce(largest, ReduceOp::kMax, peers);
  largest = largest.cpu();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    parameters[i].bytes = largest.data_ptr<std::int64_t>()[i];
}

void GradientReducer::Impl::make_buckets(std::vector<std::size_t> new_order) {
  order = std::move(new_order);
  std::vector<detail::BucketItem> items;
  for (const auto& parameter : parameters) {
    items.push_back({.group = parameter.group_index,
                     .dtype = parameter.tensor.scalar_type(),
                     .device = parameter.tensor.device(),
                     .bytes = parameter.bytes});
  }
  std::vector<std::size_t> reduced;
  for (const auto i : order) {
    if (parameters[i].group.size() > 1) reduced.push_back(i);
  }
  const auto plans = detail::plan_buckets(
      items, reduced, {.first = options.first_bucket_cap_bytes, .other = options.bucket_cap_bytes});
  buckets.clear();
  carriers.assign(groups.size(), kNone);
  world_carrier = kNone;
  for (const auto& plan : plans) {
    std::vector<at::Tensor> tensors;
    for (std::size_t place = 0; place < plan.items.size(); ++place) {
      auto& parameter = parameters[plan.items[place]];
      parameter.bucket = buckets.size();
      parameter.place = place;
      tensors.push_back(parameter.tensor);
    }
    const auto slot_size = detail::WindowSlot::size_for(group_counts[plan.group]);
    if (plan.last_of_group) {
      carriers[plan.group] = buckets.size();
      if (groups[plan.group] == everyone) world_carrier = buckets.size();
    }
    buckets.push_back({.memory = {tensors,
                                  {.group = groups[plan.group],
                                   .index = static_cast<int>(buckets.size()),
                                   .reduce_dtype = options.reduce_dtype,
                                   .comm_hook = options.comm_hook,
                                   .slot_size = plan.last_of_group ? slot_size : 0,
                                   .label = parameters[plan.items.front()].name}},
                       .parameters = plan.items,
                       .group_index = plan.group});
  }
  if (world_carrier == kNone) {
    extra_slot = detail::WindowSlot(
        at::zeros({detail::WindowSlot::size_for(0)},
                  parameters.front().tensor.options().dtype(at::kDouble).requires_grad(false)));
  }
}

/// Open gradients, for example those of a checkpoint, move to their places in the new buckets.
void GradientReducer::Impl::adopt_plan() {
  if (next_order.empty()) return;
  const auto adopted = std::exchange(next_order, {});
  if (adopted == order) return;
  std::vector<at::Tensor> open(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].bucket != kNone) open[i] = parameters[i].tensor.grad();
  }
  make_buckets(adopted);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (open[i].defined()) into_bucket(parameters[i]);
  }
}

/// Collective: the first rank's order is everybody's. What it did not see comes last.
void GradientReducer::Impl::learn() {
  learnt = true;
  boost::json::array seen;
  for (const auto i : seen_order) seen.emplace_back(i);
  const auto agreed = broadcast_object(seen, 0, peers);
  std::vector<std::size_t> result;
  std::vector<bool> taken(parameters.size(), false);
  const auto take = [&](std::size_t i) {
    if (i < taken.size() && !taken[i]) {
      taken[i] = true;
      result.push_back(i);
    }
  };
  for (const auto& i : agreed.as_array()) take(i.to_number<std::size_t>());
  for (std::size_t i = parameters.size(); i-- > 0;) take(i);
  next_order = std::move(result);
  seen_order.clear();
}

void GradientReducer::Impl::add_hooks() {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto& parameter = parameters[i];
    parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    // A graph may keep the node, and so the hook, longer than the reducer lives.
    auto hook = std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [weak = weak_from_this(), i](const torch::autograd::variable_list& outputs,
                                     const torch::autograd::variable_list&) {
          if (const auto impl = weak.lock()) impl->arrived(i);
          return outputs;
        });
    parameter.hook = parameter.accumulator->add_post_hook(std::move(hook));
  }
}

void GradientReducer::Impl::remove_hooks() {
  for (auto& parameter : parameters) {
    if (parameter.accumulator) parameter.accumulator->del_post_hook(parameter.hook);
  }
}

std::vector<std::string> GradientReducer::plan() const {
  std::vector<std::string> names;
  if (!impl_->learnt) return names;
  for (const auto i : impl_->next_order.empty() ? impl_->order : impl_->next_order)
    names.push_back(impl_->parameters[i].name);
  return names;
}

void GradientReducer::set_plan(const std::vector<std::string>& names) {
  std::map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < impl_->parameters.size(); ++i) index[impl_->parameters[i].name] = i;
  std::vector<std::size_t> order;
  for (const auto& name : names) {
    const auto it = index.find(name);
    if (it == index.end()) {
      fail<ConfigError>("GradientReducer",
                        "the plan has the parameter ",
                        name,
                        ", which is not there or comes twice.");
    }
    order.push_back(it->second);
    index.erase(it);
  }
  if (!index.empty()) {
    fail<ConfigError>(
        "GradientReducer", "the plan lacks the parameter ", index.begin()->first, ".");
  }
  impl_->next_order = std::move(order);
  impl_->learnt = true;
}

}  // namespace fulmen
