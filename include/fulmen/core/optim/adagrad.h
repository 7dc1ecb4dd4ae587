#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fulmen/core/optim/optimizer_base.h"

namespace fulmen {

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0.0;
  double weight_decay = 0.0;
  double initial_accumulator_value = 0.0;
  double eps = 1e-10;
  bool maximize = false;
};

/// Parameters with values of their own; what is not set comes from the options.
struct AdagradGroup {
  Parameters parameters;
  std::optional<double> lr = {};
  std::optional<double> lr_decay = {};
  std::optional<double> weight_decay = {};
  std::optional<double> initial_accumulator_value = {};
  std::optional<double> eps = {};
  std::optional<bool> maximize = {};
};

/// Adagrad as in PyTorch, on ATen's fused kernel.
class Adagrad final : public detail::OptimizerBase {
 public:
  /// Throws ConfigError for a value out of range or parameters that cannot be stepped.
  static std::shared_ptr<Adagrad> make(Parameters parameters, AdagradOptions options = {});
  static std::shared_ptr<Adagrad> make(std::vector<AdagradGroup> groups,
                                       AdagradOptions options = {});

 private:
  explicit Adagrad(std::vector<GroupInit> groups);
  void update(const Values& values, Batch& batch) override;
};

}  // namespace fulmen
