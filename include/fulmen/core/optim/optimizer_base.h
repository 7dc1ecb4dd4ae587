#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/optim/optimizer.h"
#include "fulmen/core/optim/parameters.h"

namespace fulmen::detail {

inline constexpr double kUnbounded = std::numeric_limits<double>::infinity();

/// A hyperparameter: allowed is low <= value < high, or 0 and 1 for a flag.
struct HyperparameterSpec {
  std::string_view name;
  double low = 0;
  double high = kUnbounded;
  bool flag = false;
};

enum class StateKind {
  kStep,           ///< Number of updates: a float32 scalar.
  kLikeParameter,  ///< Shape and dtype of the parameter.
  kFirstGradient,  ///< The same, but the first update sets it: until then there is none.
};

/// A tensor that is kept for each parameter.
struct StateSpec {
  std::string_view name;
  StateKind kind = StateKind::kLikeParameter;
  int used_if = -1;        ///< Index of a hyperparameter that must not be 0; -1: always used.
  int initial_value = -1;  ///< Index of the hyperparameter that holds it; -1: zero.
};

/// The tables of one optimizer class.
struct OptimizerKind {
  std::string_view name;
  std::span<const HyperparameterSpec> hyperparameters;
  std::span<const StateSpec> state;
};

/// Groups, state and bookkeeping of the optimizers that run on ATen's kernels. A derived class
/// gives its tables and the update of a batch. Nothing is allocated in a step unless the set of
/// parameters with gradients changed.
class OptimizerBase : public Optimizer {
 public:
  static constexpr std::size_t kMaxHyperparameters = 8;
  static constexpr std::size_t kMaxState = 4;
  using Values = std::array<double, kMaxHyperparameters>;  ///< In the order of the table.
  using State = std::array<at::Tensor, kMaxState>;         ///< In the order of the table.
  struct GroupInit {
    Parameters parameters;
    Values values;
  };

  std::string_view name() const final { return kind_.name; }
  std::size_t group_count() const final { return groups_.size(); }
  std::span<const NamedParameter> parameters(std::size_t group) const final;
  std::vector<std::string> hyperparameter_names(std::size_t group) const final;
  double hyperparameter(std::size_t group, std::string_view key) const final;
  void set_hyperparameter(std::size_t group, std::string_view key, double value) final;
  at::Tensor step(const Closure& closure = {}) final;
  void bind(const std::function<void(NamedParameter&)>& bind) final;
  StateDict state_dict() const final;
  void check_state(const StateDict& state, std::vector<std::string>& problems) const final;
  void load_state_dict(const StateDict& state) final;

 protected:
  /// Parameters of one device and dtype, with their gradients and state, ready for a kernel.
  struct Batch {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    std::array<std::vector<at::Tensor>, kMaxState> state;  ///< Empty where not used.
    bool first = false;  ///< kFirstGradient state is to be set by this update.
  };

  OptimizerBase(const OptimizerKind& kind, std::vector<GroupInit> groups);
  /// Throws ConfigError for values that do not go together.
  virtual void check_values(const Values& values) const;
  virtual void update(const Values& values, Batch& batch) = 0;
  /// Runs check_values on every group; for the end of a derived class's construction.
  void check_groups_together() const;

 private:
  struct Entry {
    State state;
    std::size_t batch = 0;
    std::size_t slot = 0;
    bool active = false;
  };
  struct Group {
    std::vector<NamedParameter> parameters;
    std::vector<Entry> entries;
    std::vector<Batch> batches;
    Values values{};
    bool stale = true;  ///< The batches must be made anew.
  };

  const Group& group_at(std::size_t group) const;
  std::size_t find_hyperparameter(std::string_view key) const;
  void check_value(std::size_t index, double value) const;
  void check_parameters();
  bool used(const StateSpec& spec, const Values& values) const;
  bool is_first(const Group& group, const Entry& entry) const;
  void ensure_state(Group& group, std::size_t index);
  void complete_states(Group& group);
  void build_batches(Group& group);
  bool collect_gradients(Group& group) const;
  [[noreturn]] void fail_gradient(const Group& group, std::size_t index) const;
  Values merged_values(const StateDict& state, std::size_t group) const;
  void check_tensors(const StateDict& state, std::vector<std::string>& problems) const;
  std::vector<std::vector<State>> read_tensors(const StateDict& state) const;

  const OptimizerKind& kind_;
  std::vector<Group> groups_;
};

}  // namespace fulmen::detail
