// Reduction without a window: for manual optimization, and as a reference for tests.
#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/support/error.h"
#include "strategies/gradient_reducer_impl.h"

namespace fulmen {
namespace {

/// One vector of all gradients, zeros where there is none, then a 1 for each that there is. Sums of
/// ones are above 0 in any dtype.
at::Tensor flatten(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) {
  const auto options = parameters.front().options().dtype(dtype).requires_grad(false);
  std::vector<at::Tensor> parts;
  auto used = at::zeros({static_cast<std::int64_t>(parameters.size())}, at::kDouble);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = parameters[i].grad();
    parts.push_back(gradient.defined() ? gradient.detach().reshape(-1).to(dtype)
                                       : at::zeros({parameters[i].numel()}, options));
    if (gradient.defined()) used.data_ptr<double>()[i] = 1;
  }
  parts.push_back(used.to(options));
  return at::cat(parts);
}

void unflatten(const at::Tensor& sums, const std::vector<at::Tensor>& parameters) {
  const auto count = static_cast<std::int64_t>(parameters.size());
  const auto used = sums.narrow(0, sums.numel() - count, count).ne(0).cpu();
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& parameter = parameters[i];
    const auto sum = sums.narrow(0, begin, parameter.numel()).view(parameter.sizes());
    begin += parameter.numel();
    if (!used.data_ptr<bool>()[i]) continue;
    auto& gradient = parameter.mutable_grad();
    if (!gradient.defined()) gradient = at::empty_like(parameter.detach());
    gradient.copy_(sum);
  }
}

}  // namespace

void GradientReducer::reduce_now(std::span<const at::Tensor> wanted) {
  using Key = std::tuple<std::size_t, at::ScalarType, std::string>;
  const at::NoGradGuard no_grad;
  std::unordered_set<const void*> chosen;
  for (const auto& tensor : wanted) chosen.insert(tensor.unsafeGetTensorImpl());
  std::map<Key, std::pair<ProcessGroup, std::vector<at::Tensor>>> sets;
  for (auto& parameter : impl_->parameters) {
    const auto& tensor = parameter.tensor;
    if (parameter.reduced || !chosen.contains(tensor.unsafeGetTensorImpl())) continue;
    impl_->mark_reduced(parameter);
    if (parameter.group.size() > 1) {
      const Key key{parameter.group_index, tensor.scalar_type(), tensor.device().str()};
      sets.try_emplace(key, parameter.group, std::vector<at::Tensor>())
          .first->second.second.push_back(tensor);
    } else if (tensor.grad().defined() && impl_->data_size != 1) {
      tensor.mutable_grad().div_(impl_->data_size);
    }
  }
  for (auto& [key, set] : sets) {
    const auto& [group, tensors] = set;
    const auto dtype = std::get<at::ScalarType>(key);
    auto sums = flatten(
        tensors, at::isComplexType(dtype) ? dtype : impl_->options.reduce_dtype.value_or(dtype));
    all_reduce(sums, ReduceOp::kSum, group);
    if (impl_->data_size != 1) sums.div_(impl_->data_size);
    unflatten(sums, tensors);
  }
}

std::vector<std::string> GradientReducer::reduced() const {
  std::vector<std::string> names;
  if (!impl_->window_open) return names;
  for (const auto& parameter : impl_->parameters) {
    if (parameter.reduced) names.push_back(parameter.name);
  }
  return names;
}

void GradientReducer::set_reduced(const std::vector<std::string>& names) {
  for (const auto& name : names) {
    const auto it = std::ranges::find(impl_->parameters, name, &Impl::Parameter::name);
    if (it == impl_->parameters.end()) {
      fail<ConfigError>("GradientReducer",
                        "the checkpoint has a reduced gradient of ",
                        name,
                        ", which is no parameter that is reduced.");
    }
    impl_->mark_reduced(*it);
  }
}

}  // namespace fulmen
