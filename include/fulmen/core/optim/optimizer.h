#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/support/state_dict.h"

namespace fulmen {

struct NamedParameter {
  std::string name;  ///< The module's name of it; empty until the trainer has named it.
  at::Tensor tensor;
};

/// Updates parameters from their gradients. Parameters stand in groups; each group has its
/// hyperparameters
/// ("lr", "weight_decay", "momentum", ...) as doubles. A tensor that is given twice is stepped
/// once. State exists from the first step on. Not thread-safe.
class Optimizer {
 public:
  /// Clears gradients, runs forward and backward, and returns the loss.
  using Closure = std::function<at::Tensor()>;

  virtual ~Optimizer() = default;

  /// The class's name, for messages and tables: "AdamW".
  virtual std::string_view name() const = 0;

  virtual std::size_t group_count() const = 0;
  virtual std::span<const NamedParameter> parameters(std::size_t group) const = 0;
  /// The tensors of all groups.
  std::vector<at::Tensor> all_parameters() const;
  virtual std::vector<std::string> hyperparameter_names(std::size_t group) const = 0;
  /// Throws ConfigError for an unknown name, naming the known ones.
  virtual double hyperparameter(std::size_t group, std::string_view key) const = 0;
  virtual void set_hyperparameter(std::size_t group, std::string_view key, double value) = 0;

  /// One update. With a closure it is called first (more than once by LBFGS); returns its last
  /// loss, else an undefined tensor. Parameters without a gradient are left alone.
  virtual at::Tensor step(const Closure& closure = {}) = 0;
  /// Whether step() calls the closure more than once (LBFGS): such an optimizer cannot accumulate.
  virtual bool reevaluates() const { return false; }
  /// Drops the gradients (they become undefined).
  virtual void zero_grad();

  /// Names and possibly replaces the parameters: `bind` gets each and changes it in place. Called
  /// by the trainer before any state exists (strategies put this rank's shard in place); throws
  /// ConfigError afterwards.
  virtual void bind(const std::function<void(NamedParameter&)>& bind) = 0;

  /// State by parameter name: tensors "<parameter>/<key>", values with the hyperparameters of the
  /// groups.
  virtual StateDict state_dict() const = 0;
  /// Adds a sentence to `problems` for everything in `state` that does not fit (groups, names,
  /// shapes, dtypes). Changes nothing.
  virtual void check_state(const StateDict& state, std::vector<std::string>& problems) const = 0;
  /// Restores a state that check_state found nothing wrong with. Throws CheckpointError otherwise,
  /// changing nothing.
  virtual void load_state_dict(const StateDict& state) = 0;

  /// The learning rate of each group before any scheduler changed it: recorded by the first call,
  /// which the first scheduler makes. So the order in which schedulers are made does not matter.
  std::span<const double> initial_lrs();

 private:
  std::vector<double> initial_lrs_;
};

}  // namespace fulmen
