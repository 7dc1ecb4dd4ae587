#pragma once

#include <fulmen/fulmen.h>

#include <optional>

namespace fulmen {

/// What the least strategy for several ranks looks like, by public headers alone: each gradient is
/// summed by a collective of its own when the window ends. Slow, and right.
class NaiveStrategy : public Strategy {
 public:
  explicit NaiveStrategy(std::shared_ptr<World> world) : world_(std::move(world)) {}

  std::string key() const override { return "naive(" + mesh().describe() + ")"; }
  void setup_environment(const EnvironmentRequest& request) override {
    if (!mesh_) mesh_.emplace(std::vector<MeshAxis>{{.name = "data"}}, world_);
    device_ = request.accelerator->device(0);
  }
  const DeviceMesh& mesh() const override { return mesh_.value(); }
  c10::Device root_device() const override { return device_; }
  void setup(ModuleBase& module, Stage) override {
    module.to(device_);
    module.set_device(device_);
    placed_ = PlacedParameters(module, mesh());
    placed_.check_equal_on_all_ranks();
    placed_.broadcast_values();
  }

  WindowVerdict finish_gradients(std::span<const at::Tensor> parameters,
                                 const WindowVote& vote) override {
    auto votes = torch::tensor({vote.weight.number,
                                vote.has_loss ? 1.0 : 0.0,
                                vote.skip ? 1.0 : 0.0,
                                vote.stop ? 1.0 : 0.0,
                                vote.finish ? 1.0 : 0.0,
                                vote.validate ? 1.0 : 0.0},
                               torch::kDouble);
    if (vote.weight.tensor.defined()) votes[0] += vote.weight.tensor;
    all_reduce(votes, ReduceOp::kSum, world_->all());
    sum(parameters, divisor(votes[0].item<double>()));
    const auto any = [&](std::int64_t i) { return votes[i].item<double>() > 0; };
    return {
        .has_loss = any(1), .skip = any(2), .stop = any(3), .finish = any(4), .validate = any(5)};
  }
  void reduce_gradients(std::span<const at::Tensor> parameters) override {
    sum(parameters, world_->size());
  }
  at::Tensor clip_grad_norm(std::span<const at::Tensor> parameters, double max_norm) override {
    auto norm = placed_.grad_norm(parameters);
    scale_to_norm(gradients_of(parameters), max_norm, norm);
    return norm;
  }
  void synchronize_buffers(ModuleBase& module) override { placed_.broadcast_buffers(module); }
  void abandon() noexcept override {
    placed_ = {};
    mesh_.reset();
    world_->leave();
  }

 protected:
  virtual double divisor(double weight) const { return weight > 0 ? weight : 1; }
  virtual void sum_over_ranks(at::Tensor& gradient) const {
    all_reduce(gradient, ReduceOp::kSum, world_->all());
  }
  const std::shared_ptr<World>& world() const { return world_; }

 private:
  void sum(std::span<const at::Tensor> parameters, double by) const {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : parameters) {
      auto& gradient = parameter.mutable_grad();
      auto used = torch::tensor({gradient.defined() ? 1.0 : 0.0});
      all_reduce(used, ReduceOp::kMax, world_->all());
      if (used.item<double>() == 0) continue;
      if (!gradient.defined()) gradient = torch::zeros_like(parameter);
      sum_over_ranks(gradient);
      gradient.div_(by);
    }
  }

  std::shared_ptr<World> world_;
  std::optional<DeviceMesh> mesh_;
  c10::Device device_ = c10::Device(c10::kCPU);
  PlacedParameters placed_;
};

}  // namespace fulmen
