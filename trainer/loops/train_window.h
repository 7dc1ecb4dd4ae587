#pragma once

#include <vector>

#include "../session.h"
#include "limited_source.h"

namespace fulmen::detail {

class FitLoop;

/// The training loop's side of a window: fetches micro-batches, runs their steps with all hooks,
/// and updates.
class TrainWindow final : public Window {
 public:
  TrainWindow(Session& session, FitLoop& loop);

  /// From the batches of this epoch.
  void set_data(LimitedSource& data) { data_ = &data; }
  /// Goes on with the open window, or opens one.
  void open() { closed_ = false; }

  bool next() override;
  bool is_last() const override;
  void accumulate(GradSync sync) override;
  void step() override;
  void end_batch() override;

  // Of the session's ManualOptimization.
  void manual_backward(const at::Tensor& loss);
  void manual_step(std::size_t index, const Optimizer::Closure& closure);
  void prepare_clipping(const Optimizer& optimizer);

 private:
  bool manual() const { return session_.module->optimization_mode() == OptimizationMode::kManual; }
  bool start_batch();
  void cut_epoch();
  void run_manual_batch();
  void unscale(std::size_t optimizer);
  at::Tensor run_micro_batch(GradSync sync);
  void run_training_step();
  void zero_gradients();
  void check_loss() const;
  bool loss_is_usable();
  void run_backward(const at::Tensor& loss, const at::Tensor& gradient, GradSync sync);
  void call_before_step(Optimizer& optimizer);
  at::Tensor seed() const;
  /// Of a micro-batch for which training_step gives none.
  double default_weight() const;
  void add_weight();
  at::Tensor closure(std::size_t optimizer);
  void apply();
  bool divides() const;
  /// All ranks together: the window's gradients and what is decided about it.
  void reduce_window();
  void check_scaled_gradients();
  void reduce_for(std::size_t optimizer);
  void unscale_once(const Optimizer& optimizer);
  bool gradients_are_finite(const Optimizer& optimizer);
  void close();
  /// So that an optimizer that is stepped nevertheless finds nothing to do.
  void drop_gradients() const;
  /// Remembers a parameter that a step will change.
  void watch(const Optimizer& optimizer);

  Session& session_;
  FitLoop& loop_;
  LimitedSource* data_ = nullptr;
  AnyBatch batch_;
  StepOutput output_;
  std::int64_t batch_idx_ = 0;
  bool closed_ = false;
  bool closure_called_ = false;
  bool evaluated_ = false;  ///< The micro-batch of this step has been run.
  bool reduced_ = false;    ///< The window's gradients are those of all ranks.
  bool had_loss_ = false;   ///< Some rank had one in this window.
  bool scaler_used_ = false;
  std::vector<bool> stepped_;  ///< Which optimizers manual optimization stepped in this batch.
  bool data_left_ = true;      ///< False where the window is closed without a further micro-batch.
  std::vector<Optimizer::Closure> closures_;
  at::Tensor watched_;
  std::int64_t watched_version_ = 0;
};

}  // namespace fulmen::detail
