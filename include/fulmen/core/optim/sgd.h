#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fulmen/core/optim/optimizer_base.h"

namespace fulmen {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;  ///< Needs a momentum and no dampening.
  bool maximize = false;
};

/// Parameters with values of their own; what is not set comes from the options.
struct SGDGroup {
  Parameters parameters;
  std::optional<double> lr = {};
  std::optional<double> momentum = {};
  std::optional<double> dampening = {};
  std::optional<double> weight_decay = {};
  std::optional<bool> nesterov = {};
  std::optional<bool> maximize = {};
};

/// Stochastic gradient descent as in PyTorch, on ATen's fused kernel.
class SGD final : public detail::OptimizerBase {
 public:
  /// Throws ConfigError for a value out of range or parameters that cannot be stepped.
  static std::shared_ptr<SGD> make(Parameters parameters, SGDOptions options = {});
  static std::shared_ptr<SGD> make(std::vector<SGDGroup> groups, SGDOptions options = {});

 private:
  explicit SGD(std::vector<GroupInit> groups);
  void check_values(const Values& values) const override;
  void update(const Values& values, Batch& batch) override;
};

}  // namespace fulmen
