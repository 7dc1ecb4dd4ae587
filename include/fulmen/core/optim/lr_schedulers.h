#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "fulmen/core/optim/stepped_lr.h"

namespace fulmen {

struct StepLROptions {
  std::int64_t step_size = 0;  ///< Required: at least 1.
  double gamma = 0.1;
};
struct MultiStepLROptions {
  std::vector<std::int64_t> milestones = {};  ///< In any order; one that stands twice counts twice.
  double gamma = 0.1;
};
struct ExponentialLROptions {
  double gamma = 0;  ///< Required: above 0.
};
struct ConstantLROptions {
  double factor = 1.0 / 3;  ///< In (0, 1].
  std::int64_t total_iters = 5;
};
struct LinearLROptions {
  double start_factor = 1.0 / 3;  ///< In (0, 1].
  double end_factor = 1.0;        ///< In [0, 1].
  std::int64_t total_iters = 5;   ///< At least 1.
};
struct PolynomialLROptions {
  std::int64_t total_iters = 5;  ///< At least 1.
  double power = 1.0;
};
struct CosineAnnealingLROptions {
  std::int64_t t_max = 0;  ///< Required: at least 1. The rate is at eta_min then.
  double eta_min = 0.0;
};
/// Factor of a step (or epoch), counted from 0.
using LRFunction = std::function<double(std::int64_t)>;
struct LambdaLROptions {
  LRFunction lr_lambda = {};                ///< For all groups; or else:
  std::vector<LRFunction> lr_lambdas = {};  ///< One for each group.
};

/// Multiplies the rate by gamma every step_size steps.
class StepLR final : public SteppedLR {
 public:
  static std::shared_ptr<StepLR> make(std::shared_ptr<Optimizer>, StepLROptions);

 private:
  StepLR(std::shared_ptr<Optimizer> optimizer, StepLROptions options);
  double next_lr(std::size_t group, double lr) const override;
  StepLROptions options_;
};

/// Multiplies the rate by gamma at each milestone.
class MultiStepLR final : public SteppedLR {
 public:
  static std::shared_ptr<MultiStepLR> make(std::shared_ptr<Optimizer>, MultiStepLROptions);

 private:
  MultiStepLR(std::shared_ptr<Optimizer> optimizer, MultiStepLROptions options);
  double next_lr(std::size_t group, double lr) const override;
  MultiStepLROptions options_;
};

/// Multiplies the rate by gamma at each step.
class ExponentialLR final : public SteppedLR {
 public:
  static std::shared_ptr<ExponentialLR> make(std::shared_ptr<Optimizer>, ExponentialLROptions);

 private:
  ExponentialLR(std::shared_ptr<Optimizer> optimizer, ExponentialLROptions options);
  double next_lr(std::size_t group, double lr) const override;
  ExponentialLROptions options_;
};

/// Multiplies the rate by factor until step total_iters.
class ConstantLR final : public SteppedLR {
 public:
  static std::shared_ptr<ConstantLR> make(std::shared_ptr<Optimizer>,
                                          ConstantLROptions options = {});

 private:
  ConstantLR(std::shared_ptr<Optimizer> optimizer, ConstantLROptions options);
  double next_lr(std::size_t group, double lr) const override;
  ConstantLROptions options_;
};

/// Moves the factor linearly from start_factor to end_factor in total_iters steps: warm-up.
class LinearLR final : public SteppedLR {
 public:
  static std::shared_ptr<LinearLR> make(std::shared_ptr<Optimizer>, LinearLROptions options = {});

 private:
  LinearLR(std::shared_ptr<Optimizer> optimizer, LinearLROptions options);
  double next_lr(std::size_t group, double lr) const override;
  LinearLROptions options_;
};

/// Decays the rate as (1 - step / total_iters) ^ power.
class PolynomialLR final : public SteppedLR {
 public:
  static std::shared_ptr<PolynomialLR> make(std::shared_ptr<Optimizer>,
                                            PolynomialLROptions options = {});

 private:
  PolynomialLR(std::shared_ptr<Optimizer> optimizer, PolynomialLROptions options);
  double next_lr(std::size_t group, double lr) const override;
  PolynomialLROptions options_;
};

/// Half a cosine from the initial rate to eta_min in t_max steps, and back up after that.
class CosineAnnealingLR final : public SteppedLR {
 public:
  static std::shared_ptr<CosineAnnealingLR> make(std::shared_ptr<Optimizer>,
                                                 CosineAnnealingLROptions);

 private:
  CosineAnnealingLR(std::shared_ptr<Optimizer> optimizer, CosineAnnealingLROptions options);
  double next_lr(std::size_t group, double lr) const override;
  CosineAnnealingLROptions options_;
};

/// The initial rate times lr_lambda(step).
class LambdaLR final : public SteppedLR {
 public:
  static std::shared_ptr<LambdaLR> make(std::shared_ptr<Optimizer>, LambdaLROptions);

 private:
  LambdaLR(std::shared_ptr<Optimizer> optimizer, LambdaLROptions options);
  double next_lr(std::size_t group, double lr) const override;
  std::vector<LRFunction> functions_;
};

/// The rate of the step before times lr_lambda(step); nothing at step 0.
class MultiplicativeLR final : public SteppedLR {
 public:
  static std::shared_ptr<MultiplicativeLR> make(std::shared_ptr<Optimizer>, LambdaLROptions);

 private:
  MultiplicativeLR(std::shared_ptr<Optimizer> optimizer, LambdaLROptions options);
  double next_lr(std::size_t group, double lr) const override;
  std::vector<LRFunction> functions_;
};

}  // namespace fulmen
