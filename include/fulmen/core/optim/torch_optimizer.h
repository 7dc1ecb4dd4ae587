#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/optim/optimizer.h"

namespace torch::optim {
class Optimizer;
class OptimizerOptions;
class OptimizerParamState;
}  // namespace torch::optim

namespace fulmen {

/// How the state and the options of an optimizer class that Fulmen does not know are read and
/// written.
struct TorchOptimizerCodec {
  struct Hyperparameter {
    std::string name;
    std::function<double(const torch::optim::OptimizerOptions&)> get;
    std::function<void(torch::optim::OptimizerOptions&, double)> set;
  };

  std::string name = {};  ///< Of the class: required.
  /// The tensors of one parameter's state, by name (without '/'). Numbers are scalar tensors.
  std::function<TensorMap(const torch::optim::OptimizerParamState&)> save = {};
  /// The inverse. Throws CheckpointError if tensors are missing; must change nothing else.
  std::function<std::unique_ptr<torch::optim::OptimizerParamState>(const TensorMap&)> load = {};
  /// Adds a sentence for each tensor of group[index]'s state that is missing or does not fit.
  /// Optional.
  std::function<void(std::span<const NamedParameter> group,
                     std::size_t index,
                     const TensorMap& tensors,
                     std::vector<std::string>& problems)>
      check = {};
  std::vector<Hyperparameter> hyperparameters = {};  ///< Empty: "lr", through get_lr and set_lr.
};

/// Lets one of LibTorch's optimizers be used where Fulmen wants an Optimizer. SGD, Adam, AdamW,
/// Adagrad, RMSprop and LBFGS are known; another class needs a codec. A tensor given twice
/// (module->parameters() lists tied ones twice) is stepped once. On many small tensors these are
/// several times slower than Fulmen's own.
class TorchOptimizer final : public Optimizer {
 public:
  /// Throws ConfigError for a null pointer, or a class that is not known without a codec.
  static std::shared_ptr<TorchOptimizer> make(std::unique_ptr<torch::optim::Optimizer> optimizer,
                                              TorchOptimizerCodec codec = {});
  ~TorchOptimizer() override;

  /// "torch::optim::AdamW"; the codec's name for other classes.
  std::string_view name() const override { return codec_.name; }
  std::size_t group_count() const override { return groups_.size(); }
  std::span<const NamedParameter> parameters(std::size_t group) const override;
  std::vector<std::string> hyperparameter_names(std::size_t group) const override;
  double hyperparameter(std::size_t group, std::string_view key) const override;
  void set_hyperparameter(std::size_t group, std::string_view key, double value) override;
  /// LBFGS throws ConfigError without a closure.
  at::Tensor step(const Closure& closure = {}) override;
  bool reevaluates() const override { return needs_closure_; }
  void bind(const std::function<void(NamedParameter&)>& bind) override;
  StateDict state_dict() const override;
  void check_state(const StateDict& state, std::vector<std::string>& problems) const override;
  void load_state_dict(const StateDict& state) override;

  /// The optimizer inside. Its parameter groups must not be changed.
  torch::optim::Optimizer& inner() const { return *optimizer_; }

 private:
  TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer, TorchOptimizerCodec codec);
  void drop_repeated();
  const TorchOptimizerCodec::Hyperparameter& find(std::size_t group, std::string_view key) const;
  void replace(std::size_t group, std::size_t index, const at::Tensor& tensor);
  /// The saved tensors of each parameter, by their names without the parameter's.
  std::vector<std::vector<TensorMap>> sort_tensors(const StateDict& state,
                                                   std::vector<std::string>& problems) const;

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  TorchOptimizerCodec codec_;
  std::vector<std::vector<NamedParameter>> groups_;
  bool needs_closure_ = false;
  bool state_from_start_ = false;  ///< The class makes its state in the constructor (Adagrad).
  bool has_state_ = false;         ///< After a step or a load.
};

}  // namespace fulmen
