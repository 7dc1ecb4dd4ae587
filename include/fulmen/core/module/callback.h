#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

#include "fulmen/core/data/batch.h"
#include "fulmen/core/module/step_output.h"
#include "fulmen/core/module/trainer_context.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen {

/// Decides a callback's place in the order of calls: checkpoint callbacks come last, and at the end
/// of a training epoch monitors and checkpoints come after the module, so that they see what it
/// logs there.
enum class CallbackKind { kOrdinary, kMonitor, kCheckpoint, kProgressBar };

/// Code that runs at fixed points of a run. Override what you need; hooks do nothing by default.
/// Names and order are Lightning's (docs/hooks.md). An exception from a hook ends the run,
/// on_exception of every callback first.
class Callback {
 public:
  using Context = TrainerContext;
  using Module = ModuleBase;

  virtual ~Callback() = default;

  virtual CallbackKind kind() const { return CallbackKind::kOrdinary; }
  /// Under which state is stored; two stateful callbacks of a trainer need different ones. Default:
  /// the class's name.
  virtual std::string state_key() const;
  /// Empty: stateless.
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict& /*state*/) {}

  /// Forgets earlier fits. Called first thing in each fit; a checkpoint's state comes after it.
  virtual void reset() {}
  virtual void setup(Context&, Module&, Stage) {}
  virtual void teardown(Context&, Module&, Stage) {}
  /// Inside the strategy's model_sharded_context(), after the module's configure_sharded_model().
  virtual void on_configure_sharded_model(Context&, Module&) {}
  virtual void on_fit_start(Context&, Module&) {}
  virtual void on_fit_end(Context&, Module&) {}
  virtual void on_sanity_check_start(Context&, Module&) {}
  virtual void on_sanity_check_end(Context&, Module&) {}

  virtual void on_train_start(Context&, Module&) {}
  virtual void on_train_end(Context&, Module&) {}
  virtual void on_train_epoch_start(Context&, Module&) {}
  virtual void on_train_epoch_end(Context&, Module&) {}
  virtual void on_train_batch_start(Context&,
                                    Module&,
                                    BatchView /*batch*/,
                                    std::int64_t /*batch_idx*/) {}
  virtual void on_train_batch_end(Context&,
                                  Module&,
                                  const StepOutput& /*outputs*/,
                                  BatchView /*batch*/,
                                  std::int64_t /*batch_idx*/) {}
  virtual void on_before_zero_grad(Context&, Module&, Optimizer&) {}
  virtual void on_before_backward(Context&, Module&, const at::Tensor& /*loss*/) {}
  virtual void on_after_backward(Context&, Module&) {}
  /// Gradients are complete, divided and unscaled, not clipped.
  virtual void on_before_optimizer_step(Context&, Module&, Optimizer&) {}

  virtual void on_validation_start(Context&, Module&) {}
  virtual void on_validation_end(Context&, Module&) {}
  virtual void on_validation_epoch_start(Context&, Module&) {}
  virtual void on_validation_epoch_end(Context&, Module&) {}
  virtual void on_validation_batch_start(
      Context&, Module&, BatchView, std::int64_t /*batch_idx*/, std::int64_t /*dataloader_idx*/) {}
  virtual void on_validation_batch_end(Context&,
                                       Module&,
                                       const StepOutput&,
                                       BatchView,
                                       std::int64_t /*batch_idx*/,
                                       std::int64_t /*dataloader_idx*/) {}
  virtual void on_test_start(Context&, Module&) {}
  virtual void on_test_end(Context&, Module&) {}
  virtual void on_test_epoch_start(Context&, Module&) {}
  virtual void on_test_epoch_end(Context&, Module&) {}
  virtual void on_test_batch_start(
      Context&, Module&, BatchView, std::int64_t /*batch_idx*/, std::int64_t /*dataloader_idx*/) {}
  virtual void on_test_batch_end(Context&,
                                 Module&,
                                 const StepOutput&,
                                 BatchView,
                                 std::int64_t /*batch_idx*/,
                                 std::int64_t /*dataloader_idx*/) {}
  virtual void on_predict_start(Context&, Module&) {}
  virtual void on_predict_end(Context&, Module&) {}
  virtual void on_predict_epoch_start(Context&, Module&) {}
  virtual void on_predict_epoch_end(Context&, Module&) {}
  virtual void on_predict_batch_start(
      Context&, Module&, BatchView, std::int64_t /*batch_idx*/, std::int64_t /*dataloader_idx*/) {}
  virtual void on_predict_batch_end(Context&,
                                    Module&,
                                    BatchView /*prediction*/,
                                    BatchView /*batch*/,
                                    std::int64_t /*batch_idx*/,
                                    std::int64_t /*dataloader_idx*/) {}

  /// The run failed. The context's save_checkpoint() writes the state at the last boundary of a
  /// batch if a callback saves_on_exception(); without one it works outside batches only.
  virtual void on_exception(Context&, Module&, const std::exception&) {}
  /// The run stops at once because of a signal or Trainer::request_stop(); the state can be saved
  /// and resumed exactly.
  virtual void on_interrupt(Context&, Module&, std::string_view /*reason*/) {}
  /// Whether on_exception saves: the trainer then keeps what is needed to go back to the last
  /// boundary.
  virtual bool saves_on_exception() const { return false; }

  /// `extra` is this callback's to fill and comes back on load, before load_state_dict.
  virtual void on_save_checkpoint(Context&, Module&, StateDict& /*extra*/) {}
  virtual void on_load_checkpoint(Context&, Module&, const StateDict& /*extra*/) {}
};

}  // namespace fulmen
