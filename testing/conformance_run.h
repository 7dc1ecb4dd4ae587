#pragma once

#include <torch/nn/modules/linear.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "fulmen/core/data/data_loader.h"
#include "fulmen/core/distributed/strategy.h"
#include "fulmen/core/module/lightning_module.h"
#include "fulmen/testing/strategy_conformance.h"
#include "fulmen/trainer/trainer.h"

namespace fulmen::detail {

using Tensors = std::map<std::string, at::Tensor>;

/// What a test wants to happen in the module of a run.
struct ConformanceProbe {
  std::function<void(const DeviceMesh&)> in_hook = {};
  /// Replaces the loss of a micro-batch.
  std::function<at::Tensor(const at::Tensor& loss, std::int64_t batch_idx, int rank)> loss = {};
  std::function<void(std::int64_t batch_idx, int rank)> at_batch_end = {};
};

/// Two layers in float64 with fixed values, and a parameter that nothing uses.
class ConformanceModule final : public LightningModule<> {
 public:
  explicit ConformanceModule(ConformanceProbe probe);
  void configure_sharded_model() override;
  StepOutput training_step(Batch& batch, std::int64_t batch_idx) override;
  StepOutput validation_step(Batch& batch, std::int64_t batch_idx, std::int64_t loader) override;
  void on_train_batch_end(const StepOutput& output, Batch& batch, std::int64_t batch_idx) override;
  OptimizerConfigs configure_optimizers() override;
  void on_before_optimizer_step(Optimizer& optimizer) override;
  Tensors weights() const;

  std::vector<Tensors> gradients;
  int configured = 0;

 private:
  at::Tensor error(Batch& batch);
  ConformanceProbe probe_;
  torch::nn::Linear first_ = nullptr;
  torch::nn::Linear second_ = nullptr;
  at::Tensor unused_;
};

struct ConformanceCase {
  TrainerOptions trainer = {};
  std::int64_t samples = 48;
  std::int64_t joint_batch = 12;  ///< Over all data ranks.
  FitOptions fit = {};
  ConformanceProbe probe = {};
};

/// What one rank has after a run.
struct ConformanceResult {
  std::vector<Tensors> gradients;
  Tensors weights;
  FitResult fit;
  Progress progress;
  double val_loss = 0;
  std::string error;  ///< What fit threw.
};

TrainerOptions quiet(TrainerOptions options);
/// A strategy of one rank, joined to the world, so that its mesh is there.
std::shared_ptr<Strategy> make_joined(const StrategyUnderTest& under_test,
                                      const std::shared_ptr<World>& world);
DataLoader<Batch> conformance_data(std::int64_t samples, std::int64_t batch_size);
/// On each rank, in order of rank.
std::vector<ConformanceResult> run_case(const StrategyUnderTest& strategy,
                                        const ConformanceCase& what);
/// In this thread, without a strategy.
ConformanceResult run_alone(const ConformanceCase& what);
/// Empty if they are as near as that; else what differs first.
std::string difference(const ConformanceResult& a, const ConformanceResult& b, double tolerance);

}  // namespace fulmen::detail
