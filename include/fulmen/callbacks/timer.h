#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "fulmen/core/module/callback.h"
#include "fulmen/core/optim/lr_scheduler.h"

namespace fulmen {

struct TimerOptions {
  std::optional<std::chrono::duration<double>> max_time =
      {};  ///< Of training; unset: only measure.
  Interval interval =
      Interval::kStep;  ///< kStep: checked after each batch; kEpoch: after each training epoch.
  bool verbose = true;  ///< Say that the time is over.
  std::function<std::chrono::steady_clock::time_point()> clock = {};  ///< Unset: the steady clock.
};

/// Measures how long stages take, and ends the fit (once min_epochs and min_steps allow) when
/// training has taken max_time. The time goes on counting over a restart: it is part of the
/// checkpoint.
class Timer : public Callback {
 public:
  using Seconds = std::chrono::duration<double>;
  /// kTrain counts validation inside fit too; kValidate is all validation.
  enum class Part { kTrain, kValidate, kTest, kPredict };

  /// Throws ConfigError if max_time is not greater than 0.
  static std::shared_ptr<Timer> make(TimerOptions options = {});

  Seconds elapsed(Part part = Part::kTrain) const;
  /// Empty without max_time; never negative.
  std::optional<Seconds> remaining() const;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void reset() override { clocks_ = {}; }
  void on_train_start(Context& context, Module& module) override;
  void on_train_end(Context& context, Module& module) override;
  void on_train_batch_end(Context& context,
                          Module& module,
                          const StepOutput& outputs,
                          BatchView batch,
                          std::int64_t batch_idx) override;
  void on_train_epoch_end(Context& context, Module& module) override;
  void on_validation_start(Context& context, Module& module) override;
  void on_validation_end(Context& context, Module& module) override;
  void on_test_start(Context& context, Module& module) override;
  void on_test_end(Context& context, Module& module) override;
  void on_predict_start(Context& context, Module& module) override;
  void on_predict_end(Context& context, Module& module) override;
  void on_exception(Context& context, Module& module, const std::exception& error) override;
  void on_interrupt(Context& context, Module& module, std::string_view reason) override;

 private:
  struct Clock {
    Seconds before = Seconds::zero();
    std::optional<std::chrono::steady_clock::time_point> started = {};
  };

  explicit Timer(TimerOptions options) : options_(std::move(options)) {}
  std::chrono::steady_clock::time_point now() const;
  Clock& clock(Part part) { return clocks_[static_cast<std::size_t>(part)]; }
  void start(Part part);
  void stop(Part part);
  void check(Context& context);

  TimerOptions options_;
  std::array<Clock, 4> clocks_;
};

}  // namespace fulmen
