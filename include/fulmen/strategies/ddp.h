#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "fulmen/core/distributed/job.h"
#include "fulmen/core/distributed/placed_parameters.h"
#include "fulmen/core/distributed/strategy.h"
#include "fulmen/strategies/gradient_reducer.h"

namespace fulmen {

namespace detail {
class ParameterWatch;
}

struct DdpOptions {
  /// Empty: one axis "data" over all ranks. {{"data", -1}, {"model", 2}}: groups of two neighbours
  /// share the work on a sample.
  std::vector<MeshAxis> mesh = {};
  GradientReducerOptions reducer = {};
  Launch launch = Launch::kAuto;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Before each evaluation and checkpoint, replicated buffers get the value of the first rank.
  bool broadcast_buffers = true;
  /// kCompare finds ranks that call different collectives; slow. Not used with `world`.
  CollectiveChecks debug_collectives = CollectiveChecks::kNone;
  /// A world that exists already, for example of ranks that are threads; `launch` is not used then.
  std::shared_ptr<World> world = {};
};

/// Data parallel training, also with weights that are shared over a model-parallel axis: each rank
/// has the whole model, reads its share of the samples, and gradients are reduced as the
/// parameters' placements on the mesh say (docs/shared_weights.md). Results are those of one
/// process on all samples.
class DdpStrategy : public Strategy {
 public:
  /// Throws ConfigError for a mesh that cannot be.
  static std::shared_ptr<DdpStrategy> make(DdpOptions options = {});
  ~DdpStrategy() override;

  std::string key() const override;
  void setup_environment(const EnvironmentRequest& request) override;
  const DeviceMesh& mesh() const override;
  c10::Device root_device() const override { return device_; }
  void setup(ModuleBase& module, Stage stage) override;
  void backward(ModuleBase& module,
                const at::Tensor& loss,
                const at::Tensor& gradient,
                GradSync sync) override;
  WindowVerdict finish_gradients(std::span<const at::Tensor> parameters,
                                 const WindowVote& vote) override;
  void reduce_gradients(std::span<const at::Tensor> parameters) override;
  void synchronize_found_inf(at::Tensor& found) override;
  at::Tensor clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm) override;
  void synchronize_buffers(ModuleBase& module) override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  void teardown() noexcept override;
  void abandon() noexcept override;

  const PlacedParameters& parameters() const { return parameters_; }

 protected:
  explicit DdpStrategy(DdpOptions options);

 private:
  DdpOptions options_;
  std::optional<DeviceMesh> mesh_;
  c10::Device device_ = c10::Device(c10::kCPU);
  PlacedParameters parameters_;
  std::unique_ptr<GradientReducer> reducer_;
  std::unique_ptr<detail::ParameterWatch> watch_;
  bool unchecked_ = false;                   ///< Gradients that are new were in a skipped window.
  std::unordered_set<const void*> checked_;  ///< Of manual optimization, by TensorImpl.
};

}  // namespace fulmen
