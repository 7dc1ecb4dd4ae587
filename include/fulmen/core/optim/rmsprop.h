#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fulmen/core/optim/optimizer_base.h"

namespace fulmen {

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0.0;
  double momentum = 0.0;
  bool centered = false;
  bool maximize = false;
};

/// Parameters with values of their own; what is not set comes from the options.
struct RMSpropGroup {
  Parameters parameters;
  std::optional<double> lr = {};
  std::optional<double> alpha = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<double> momentum = {};
  std::optional<bool> centered = {};
  std::optional<bool> maximize = {};
};

/// RMSprop as in PyTorch, on ATen's foreach operations (there is no fused kernel).
class RMSprop final : public detail::OptimizerBase {
 public:
  /// Throws ConfigError for a value out of range or parameters that cannot be stepped.
  static std::shared_ptr<RMSprop> make(Parameters parameters, RMSpropOptions options = {});
  static std::shared_ptr<RMSprop> make(std::vector<RMSpropGroup> groups,
                                       RMSpropOptions options = {});

 private:
  explicit RMSprop(std::vector<GroupInit> groups);
  void update(const Values& values, Batch& batch) override;
};

}  // namespace fulmen
