#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "fulmen/core/optim/optimizer_base.h"

namespace fulmen {

struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;  ///< Added to the gradient (L2); AdamW decays the parameter itself.
  bool amsgrad = false;
  bool maximize = false;
};

/// Parameters with values of their own; what is not set comes from the options.
struct AdamGroup {
  Parameters parameters;
  std::optional<double> lr = {};
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<bool> amsgrad = {};
  std::optional<bool> maximize = {};
};

/// Adam as in PyTorch, on ATen's fused kernel.
class Adam final : public detail::OptimizerBase {
 public:
  /// Throws ConfigError for a value out of range or parameters that cannot be stepped.
  static std::shared_ptr<Adam> make(Parameters parameters, AdamOptions options = {});
  static std::shared_ptr<Adam> make(std::vector<AdamGroup> groups, AdamOptions options = {});

 private:
  explicit Adam(std::vector<GroupInit> groups);
  void update(const Values& values, Batch& batch) override;
};

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false;
  bool maximize = false;
};

/// Parameters with values of their own; what is not set comes from the options.
struct AdamWGroup {
  Parameters parameters;
  std::optional<double> lr = {};
  std::optional<double> beta1 = {};
  std::optional<double> beta2 = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<bool> amsgrad = {};
  std::optional<bool> maximize = {};
};

/// Adam with decoupled weight decay as in PyTorch, on ATen's fused kernel.
class AdamW final : public detail::OptimizerBase {
 public:
  /// Throws ConfigError for a value out of range or parameters that cannot be stepped.
  static std::shared_ptr<AdamW> make(Parameters parameters, AdamWOptions options = {});
  static std::shared_ptr<AdamW> make(std::vector<AdamWGroup> groups, AdamWOptions options = {});

 private:
  explicit AdamW(std::vector<GroupInit> groups);
  void update(const Values& values, Batch& batch) override;
};

}  // namespace fulmen
