#pragma once

#include <cstdint>
#include <memory>

#include "fulmen/core/optim/lr_scheduler.h"
#include "fulmen/core/optim/optimizer.h"

namespace fulmen {

enum class PlateauMode { kMin, kMax };
enum class ThresholdMode {
  kRel,  ///< Better is below best * (1 - threshold), or above best * (1 + threshold).
  kAbs,  ///< Better is below best - threshold, or above best + threshold.
};

struct ReduceLROnPlateauOptions {
  PlateauMode mode = PlateauMode::kMin;
  double factor = 0.1;         ///< In (0, 1).
  std::int64_t patience = 10;  ///< Bad steps that are borne; the next one reduces.
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::kRel;
  std::int64_t cooldown = 0;  ///< Steps after a reduction in which none counts as bad.
  double min_lr = 0.0;
  double eps = 1e-8;  ///< A smaller change of the rate is not made.
};

/// Multiplies the rates by factor when a metric has stopped to improve. NaN never counts as better.
class ReduceLROnPlateau final : public LRScheduler {
 public:
  static std::shared_ptr<ReduceLROnPlateau> make(std::shared_ptr<Optimizer> optimizer,
                                                 ReduceLROnPlateauOptions options = {});

  std::string_view name() const override { return "ReduceLROnPlateau"; }
  bool needs_metric() const override { return true; }
  /// Throws ConfigError without a metric.
  void step(std::optional<double> metric = {}) override;
  StateDict state_dict() const override;
  /// Also puts the saved rates into the optimizer.
  void load_state_dict(const StateDict& state) override;

 private:
  ReduceLROnPlateau(std::shared_ptr<Optimizer> optimizer, ReduceLROnPlateauOptions options);
  bool is_better(double metric) const;
  void reduce();

  std::shared_ptr<Optimizer> optimizer_;
  ReduceLROnPlateauOptions options_;
  double best_;
  std::int64_t step_ = 0;
  std::int64_t bad_steps_ = 0;
  std::int64_t cooldown_left_ = 0;
};

}  // namespace fulmen
