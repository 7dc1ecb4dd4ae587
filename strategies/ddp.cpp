#include "fulmen/strategies/ddp.h"

#include <torch/torch.h>

#include <boost/json/array.hpp>

#include "core/distributed/collective_call.h"
#include "core/distributed/parameter_watch.h"
#include "fulmen/core/module/module_base.h"
#include "fulmen/core/optim/clip_grad.h"
#include "fulmen/core/support/accelerator.h"
#include "fulmen/core/support/error.h"

namespace fulmen {

std::shared_ptr<DdpStrategy> DdpStrategy::make(DdpOptions options) {
  return std::shared_ptr<DdpStrategy>(new DdpStrategy(std::move(options)));
}

DdpStrategy::DdpStrategy(DdpOptions options) : options_(std::move(options)) {
  if (options_.timeout.count() <= 0) {
    fail<ConfigError>(
        "DdpStrategy", "timeout must be greater than 0, got ", options_.timeout.count(), " ms.");
  }
  if (options_.mesh.empty()) options_.mesh.push_back({.name = "data"});
}

DdpStrategy::~DdpStrategy() = default;

std::string DdpStrategy::key() const {
  return "ddp(" + mesh().describe() + ")";
}

const DeviceMesh& DdpStrategy::mesh() const {
  if (!mesh_) {
    fail<ConfigError>("DdpStrategy",
                      "there is no mesh before the run starts and the ranks have met. Use it in ",
                      "configure_sharded_model() or later.");
  }
  return *mesh_;
}

void DdpStrategy::setup_environment(const EnvironmentRequest& request) {
  const auto ranks = request.devices * request.num_nodes;
  if (mesh_ && mesh_->size() == ranks) return;  // The ranks of an earlier run are still there.
  // What cannot be is found before a process is started.
  DeviceMesh::resolve(options_.mesh, static_cast<int>(ranks));
  auto world = options_.world;
  if (world == nullptr) {
    world = join_job({.devices = request.devices,
                      .num_nodes = request.num_nodes,
                      .launch = options_.launch,
                      .timeout = options_.timeout,
                      .debug_collectives = options_.debug_collectives,
                      .accelerator = request.accelerator},
                     request.log);
  } else if (world->size() != ranks) {
    fail<ConfigError>("DdpStrategy",
                      "the world that was given has ",
                      world->size(),
                      " ranks, but devices * num_nodes is ",
                      ranks,
                      ". Set .devices to the ranks of each host.");
  }
  mesh_.emplace(options_.mesh, world);
  device_ = request.accelerator->device(world->topology().local_rank);
}

void DdpStrategy::setup(ModuleBase& module, Stage stage) {
  reducer_.reset();
  unchecked_ = false;
  checked_.clear();
  module.to(device_);
  module.set_device(device_);
  parameters_ = PlacedParameters(module, mesh());
  parameters_.check_equal_on_all_ranks();
  parameters_.broadcast_values();
  if (stage == Stage::kFit) {
    reducer_ = std::make_unique<GradientReducer>(parameters_, options_.reducer);
    watch_ = std::make_unique<detail::ParameterWatch>(module);
  }
}

void DdpStrategy::backward(ModuleBase& module,
                           const at::Tensor& loss,
                           const at::Tensor& gradient,
                           GradSync sync) {
  if (const auto* name = watch_->find_replaced()) {
    fail<TrainingError>("DdpStrategy",
                        *name,
                        " was replaced by another tensor after the start of the run, so its ",
                        "gradient would not be reduced. Assign to its elements under NoGradGuard, ",
                        "or replace it in configure_sharded_model().");
  }
  if (sync == GradSync::kManual) {
    reducer_->start_backward(sync);
    module.backward(loss, gradient);
    reducer_->end_backward();
    return;
  }
  const auto scale = reducer_->loss_scale();
  auto seed = gradient;
  if (scale != 1)
    seed = gradient.defined() ? gradient * scale : at::full_like(loss, scale).detach();
  reducer_->start_backward(sync);
  module.backward(loss, seed);
  reducer_->end_backward();
}

WindowVerdict DdpStrategy::finish_gradients(std::span<const at::Tensor>, const WindowVote& vote) {
  const auto verdict = reducer_->finish(vote);
  unchecked_ |= reducer_->has_news();
  if (verdict.has_loss && !verdict.skip && std::exchange(unchecked_, false))
    parameters_.check_unmarked_gradients();
  return verdict;
}

void DdpStrategy::reduce_gradients(std::span<const at::Tensor> parameters) {
  reducer_->reduce_now(parameters);
  // Once for each optimizer: their parameters get gradients at different times.
  bool is_new = false;
  for (const auto& parameter : parameters)
    is_new |= checked_.insert(parameter.unsafeGetTensorImpl()).second;
  if (is_new) parameters_.check_unmarked_gradients();
}

void DdpStrategy::synchronize_found_inf(at::Tensor& found) {
  if (parameters_.has_own_parts()) all_reduce(found, ReduceOp::kMax, mesh().world()->all());
}

at::Tensor DdpStrategy::clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm) {
  auto norm = parameters_.grad_norm(parameters);
  scale_to_norm(gradients_of(parameters), max_norm, norm);
  return norm;
}

void DdpStrategy::synchronize_buffers(ModuleBase& module) {
  if (reducer_ != nullptr) parameters_.check_not_replaced(module);
  if (options_.broadcast_buffers) parameters_.broadcast_buffers(module);
}

StateDict DdpStrategy::state_dict() const {
  StateDict state;
  if (reducer_ == nullptr) return state;
  boost::json::array plan;
  for (const auto& name : reducer_->plan()) plan.emplace_back(name);
  if (!plan.empty()) state.values["bucket_plan"] = std::move(plan);
  boost::json::array reduced;
  for (const auto& name : reducer_->reduced()) reduced.emplace_back(name);
  if (!reduced.empty()) state.values["reduced"] = std::move(reduced);
  return state;
}

void DdpStrategy::load_state_dict(const StateDict& state) {
  if (reducer_ == nullptr) return;
  const auto names = [&](std::string_view key) {
    std::vector<std::string> list;
    for (const auto& name : require_array(state.values, key, "DdpStrategy"))
      list.emplace_back(name.as_string());
    return list;
  };
  if (state.values.contains("bucket_plan")) reducer_->set_plan(names("bucket_plan"));
  if (state.values.contains("reduced")) reducer_->set_reduced(names("reduced"));
}

void DdpStrategy::teardown() noexcept {
  reducer_.reset();
}

void DdpStrategy::abandon() noexcept {
  const detail::NoWaiting no_waiting;
  reducer_.reset();
  parameters_ = {};
  if (mesh_) mesh_->world()->leave();
  mesh_.reset();
}

}  // namespace fulmen
