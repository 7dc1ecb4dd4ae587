#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace fulmen::detail {

/// Sees whether a parameter of a module has been replaced by another tensor since construction.
/// Looks at the modules' own tables and allocates nothing, so that it can be asked in every step. A
/// child that was replaced as a whole is not seen: PlacedParameters::check_not_replaced() does.
class ParameterWatch {
 public:
  ParameterWatch() = default;
  explicit ParameterWatch(const torch::nn::Module& module);

  /// The name of the first that is not the same any more; null: none.
  const std::string* find_replaced() const;

 private:
  struct Entry {
    const torch::OrderedDict<std::string, at::Tensor>* table;
    std::size_t index;
    const at::TensorImpl* tensor;
    std::string name;
  };
  void add(const torch::nn::Module& module, const std::string& prefix);

  std::vector<std::shared_ptr<torch::nn::Module>> children_;  ///< Kept, so that tables stay.
  std::vector<Entry> entries_;
};

}  // namespace fulmen::detail
