#pragma once

#include <fulmen/fulmen.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace fulmen {

/// How the weights of the strips are said to be shared over the axis "model".
enum class Sharing { kMark, kHolder, kCopy };
enum class Choice { kSgd, kAdam };

struct StripOptions {
  Sharing sharing = Sharing::kMark;
  Choice optimizer = Choice::kSgd;
  bool used_twice = false;  ///< The strips' weight acts two times in a forward.
  bool tied = false;        ///< A second layer has the first one's weight.
  bool recomputed = false;  ///< Re-entrant checkpointing of the strips' part.
  c10::ScalarType dtype = c10::ScalarType::Double;
};

using Values = std::map<std::string, at::Tensor>;

/// A sample is a row of 12 numbers; each rank of "model" works on its strip of them with the same
/// small layer, the results are gathered, and a head that every rank has computes the whole loss.
/// So the layer's gradients are terms of a sum over "model", and the head's are whole.
class StripModel : public LightningModule<> {
 public:
  static constexpr std::int64_t kWidth = 12;

  explicit StripModel(StripOptions options = {});
  void configure_sharded_model() override;
  StepOutput training_step(Batch& batch, std::int64_t batch_idx) override;
  OptimizerConfigs configure_optimizers() override;
  void on_before_optimizer_step(Optimizer& optimizer) override;

  /// Values by name, copied.
  Values weights() const;
  /// Gradients of each step, before clipping.
  std::vector<Values> gradients;

 private:
  at::Tensor strip(const at::Tensor& part);
  at::Tensor layer(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const;

  StripOptions options_;
  std::optional<ProcessGroup> group_;
  torch::nn::Linear inner_ = nullptr;
  torch::nn::Linear outer_ = nullptr;
  torch::nn::Linear head_ = nullptr;
};

/// n samples and targets, float64.
TensorDataset strip_data(std::int64_t n);

struct StripRun {
  std::vector<MeshAxis> mesh = {};  ///< Empty: one process without a strategy.
  std::int64_t joint_batch = 12;    ///< Samples of a micro-batch over all data ranks.
  std::int64_t samples = 60;
  TrainerOptions trainer = {};
  StripOptions model = {};
  GradientReducerOptions reducer = {};
  FitOptions fit = {};
};

struct StripResult {
  std::vector<Values> gradients;
  Values weights;
  FitResult fit;
  bool is_rank_zero = true;
};

/// Trains as one rank: of this world, or of the job of this process if it is null.
StripResult train_strips_here(const StripRun& run, const std::shared_ptr<World>& world);
/// Trains on ranks that are threads (as many as the mesh has) and gives what rank 0 has, after
/// comparing that all ranks have the same bits.
StripResult train_strips(const StripRun& run);

/// Fails the test unless names are the same and values differ by `tolerance` at most.
void expect_near(const Values& values, const Values& expected, double tolerance);
void expect_near(const StripResult& result, const StripResult& expected, double tolerance);

}  // namespace fulmen
