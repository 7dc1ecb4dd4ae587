#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/device_mesh.h"
#include "fulmen/core/distributed/sharded_context.h"
#include "fulmen/core/distributed/window.h"
#include "fulmen/core/module/trainer_context.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen {

/// What a strategy needs to know to join the job.
struct EnvironmentRequest {
  std::shared_ptr<Accelerator> accelerator;  ///< Not null.
  Log& log;
  std::int64_t devices = 1;    ///< Ranks on each host.
  std::int64_t num_nodes = 1;  ///< Hosts.
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
  /// Joins the job and builds the mesh; called at the start of every run. Throws ConfigError for
  /// what cannot work, DistributedError if the peers do not come in time.
  virtual void setup_environment(const EnvironmentRequest& request) = 0;
  /// Throws ConfigError before setup_environment.
  virtual const DeviceMesh& mesh() const = 0;
  virtual Topology topology() const { return mesh().world()->topology(); }
  virtual c10::Device root_device() const = 0;
  /// Base: a context with the mesh, in which nothing is sharded.
  virtual std::unique_ptr<ShardedContext> model_sharded_context(ModuleBase& module);
  /// Moves the module to root_device(), compares it on all ranks, makes its values equal, and gets
  /// gradients ready to be reduced.
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
  /// Ends a window: the gradients of `parameters` become sum of weighted gradients / sum of weights
  /// over all ranks (of shared parameters: sums over their axes too), and the votes a verdict.
  /// Gradients that no rank has stay undefined. Collective, once per window. If the verdict is to
  /// skip, or nobody has a loss, gradients are not to be used.
  virtual WindowVerdict finish_gradients(std::span<const at::Tensor> parameters,
                                         const WindowVote& vote) = 0;
  /// Manual optimization, before the gradients of one optimizer are read: the same with weight 1 on
  /// each rank, for these parameters alone. What has been reduced since the last backward is left
  /// alone, and a further backward adds to reduced gradients as in one process.
  virtual void reduce_gradients(std::span<const at::Tensor> parameters) = 0;
  /// 16-mixed: `found` (0 or 1: a gradient was not finite) becomes the maximum over ranks whose
  /// gradients are others, so that all leave out the same updates. Base: they have the same.
  virtual void synchronize_found_inf(at::Tensor& /*found*/) {}
  /// Global norm of the gradients of distinct parameters, clipped to max_norm; a tensor that is not
  /// read.
  virtual at::Tensor clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm);
  virtual void clip_grad_value(std::span<const at::Tensor> parameters, double clip_value);

  /// Makes the module's buffers equal where they are replicated. Collective; called before
  /// evaluation and before a checkpoint is captured.
  virtual void synchronize_buffers(ModuleBase& module) = 0;
  /// Elementwise over all ranks; shape, dtype and device of `value`. Collective.
  virtual at::Tensor reduce(const at::Tensor& value, ReduceOp op);
  /// Returns when all ranks have called it.
  virtual void barrier(std::string_view name);

  /// What decides the order of sums in a resumed run, and other state of this rank.
  virtual StateDict state_dict() const { return {}; }
  /// After setup, before the first backward.
  virtual void load_state_dict(const StateDict& /*state*/) {}
  /// After setup; the environment stays for the next run of this process.
  virtual void teardown() noexcept {}
  /// After an error on this rank: leaves the job, so that the others' collectives fail at once.
  virtual void abandon() noexcept { teardown(); }
};

}  // namespace fulmen
