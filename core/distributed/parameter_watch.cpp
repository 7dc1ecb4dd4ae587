#include "core/distributed/parameter_watch.h"

namespace fulmen::detail {
namespace {

/// torch::nn::Module keeps its parameters in a member that only derived classes may touch.
struct ParametersOf : torch::nn::Module {
  static auto member() { return &ParametersOf::parameters_; }
};

}  // namespace

ParameterWatch::ParameterWatch(const torch::nn::Module& module) {
  add(module, "");
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    children_.push_back(child.value());
    add(*child.value(), child.key() + ".");
  }
}

void ParameterWatch::add(const torch::nn::Module& module, const std::string& prefix) {
  const auto& parameters = module.*ParametersOf::member();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    entries_.push_back({.table = &parameters,
                        .index = i,
                        .tensor = parameters[i].value().unsafeGetTensorImpl(),
                        .name = prefix + parameters[i].key()});
  }
}

const std::string* ParameterWatch::find_replaced() const {
  for (const auto& entry : entries_) {
    if (entry.index >= entry.table->size() ||
        (*entry.table)[entry.index].value().unsafeGetTensorImpl() != entry.tensor) {
      return &entry.name;
    }
  }
  return nullptr;
}

}  // namespace fulmen::detail
