#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fulmen/core/module/trainer_context.h"

namespace fulmen {

/// Where this process stands in the job.
struct Topology {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
};

enum class ReduceOp { kSum, kMean, kMin, kMax };
enum class GradSync {
  kNow,
  kDefer
};  ///< kDefer: more micro-batches of the window follow, keep gradients local.

/// Sum of the weights of a window's micro-batches on this rank: a number, plus a tensor where
/// weights live on a device.
struct WindowWeight {
  double number = 0;
  at::Tensor tensor;
};

/// One optimizer step as the training loop offers it: a window of micro-batches.
class Window {
 public:
  /// Fetches the next micro-batch, moves it, calls on_train_batch_start. False if the window is
  /// over: it was closed by step(), or the run stops, and then gradients stay open.
  virtual bool next() = 0;
  /// Whether the micro-batch is the window's last: call step(), which runs it too, in place of
  /// accumulate().
  virtual bool is_last() const = 0;
  /// training_step and backward; gradients add up.
  virtual void accumulate(GradSync sync) = 0;
  /// The last micro-batch, then finish_gradients, hooks, clipping, update.
  virtual void step() = 0;
  /// Schedulers, on_train_batch_end, logging, and a validation that is due.
  virtual void end_batch() = 0;

 protected:
  ~Window() = default;
};

/// Held while configure_sharded_model() runs; its destructor leaves the context, also when the hook
/// throws.
class ShardedContext {
 public:
  virtual ~ShardedContext() = default;
};

/// Maps one training job onto processes and devices. One instance per process, not thread-safe;
/// every rank makes the same calls in the same order: setup_environment, model_sharded_context,
/// setup, steps and collectives, teardown.
class Strategy {
 public:
  virtual ~Strategy() = default;

  /// Names the strategy and its mesh; a module configured for another key is not configured for
  /// this one.
  virtual std::string key() const = 0;
  /// Joins the job. Throws DistributedError if the peers do not come in time.
  virtual void setup_environment(Accelerator& accelerator) = 0;
  virtual Topology topology() const { return {}; }
  virtual c10::Device root_device() const = 0;
  /// Base: a context in which nothing is sharded.
  virtual std::unique_ptr<ShardedContext> model_sharded_context(ModuleBase& module);
  /// Moves the module to root_device() and gets gradients ready to be reduced.
  virtual void setup(ModuleBase& module, Stage stage) = 0;
  /// Maps each parameter that an optimizer names to what this rank steps. Before any optimizer
  /// state exists.
  virtual void setup_optimizers(ModuleBase& /*module*/,
                                std::span<const OptimizerConfig> /*optimizers*/) {}

  /// Runs one window. The default is the plain loop with reduction in the last micro-batch.
  virtual void run_window(Window& window);
  /// d loss / d parameters, times `gradient` (undefined: 1), added to the gradients.
  virtual void backward(ModuleBase& module,
                        const at::Tensor& loss,
                        const at::Tensor& gradient,
                        GradSync sync);
  /// Turns sums of weighted gradients into the step's gradients: divides by the weights of all
  /// ranks.
  virtual void finish_gradients(std::span<const at::Tensor> gradients, const WindowWeight& weight);
  /// Global norm of the gradients of distinct parameters, clipped to max_norm; a tensor that is not
  /// read.
  virtual at::Tensor clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm);
  virtual void clip_grad_value(std::span<const at::Tensor> parameters, double clip_value);

  /// Elementwise over all ranks; shape, dtype and device of `value`.
  virtual at::Tensor reduce(const at::Tensor& value, ReduceOp /*op*/) { return value; }
  virtual void barrier(std::string_view /*name*/) {}
  virtual void teardown() noexcept {}
};

}  // namespace fulmen
