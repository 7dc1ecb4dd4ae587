#include "tests/strategies/strip_model.h"

#include <gtest/gtest.h>

namespace fulmen {
namespace {

/// Re-entrant checkpointing: the forward keeps no graph; the backward runs it again and calls
/// backward inside of backward.
struct Recompute : torch::autograd::Function<Recompute> {
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  struct Holder : torch::CustomClassHolder {
    explicit Holder(Forward function) : forward(std::move(function)) {}
    Forward forward;
  };
  static at::Tensor forward(torch::autograd::AutogradContext* context,
                            const at::Tensor& input,
                            const at::Tensor& anchor,
                            const c10::intrusive_ptr<Holder>& holder) {
    (void)anchor;  // Makes the result require a gradient.
    context->saved_data["forward"] = c10::IValue::make_capsule(holder);
    context->save_for_backward({input});
    const at::NoGradGuard no_grad;
    return holder->forward(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto holder =
        c10::static_intrusive_pointer_cast<Holder>(context->saved_data["forward"].toCapsule());
    const at::AutoGradMode grad(true);
    const auto input = context->get_saved_variables()[0].detach();
    holder->forward(input).backward(gradients[0]);
    return {{}, {}, {}};
  }
};

void fill(torch::nn::Module& module, double phase) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) {
    const auto n = parameter.numel();
    parameter.copy_(torch::arange(n, torch::kDouble)
                        .mul(0.7)
                        .add(phase)
                        .sin()
                        .mul(0.6)
                        .reshape(parameter.sizes()));
    phase += 0.31;
  }
}

}  // namespace

StripModel::StripModel(StripOptions options) : LightningModule("StripModel"), options_(options) {}

void StripModel::configure_sharded_model() {
  const auto mesh = current_mesh();
  if (mesh.has("model")) group_ = mesh.group("model");
  const torch::nn::LinearOptions shape(1, 1);
  if (options_.sharing == Sharing::kHolder && group_) {
    inner_ = register_module("inner", SharedModel<torch::nn::Linear>("model", shape).holder());
    outer_ = register_module("outer", SharedModel<torch::nn::Linear>("model", shape).holder());
  } else {
    inner_ = register_module("inner", torch::nn::Linear(shape));
    outer_ = register_module("outer", torch::nn::Linear(shape));
  }
  if (options_.tied) tie_weights(inner_->weight, outer_->weight, *outer_);
  head_ = register_module("head", torch::nn::Linear(kWidth, 2));
  fill(*this, 0.4);
  to(options_.dtype);
  if (options_.sharing != Sharing::kMark || !group_) return;
  mark_as_shared(*inner_, "model");
  mark_as_shared(*outer_, "model");
}

at::Tensor StripModel::layer(const at::Tensor& x,
                             const at::Tensor& weight,
                             const at::Tensor& bias) const {
  if (options_.sharing != Sharing::kCopy || !group_) return torch::tanh(x * weight + bias);
  return torch::tanh(x * copy_to_group(weight, *group_) + copy_to_group(bias, *group_));
}

at::Tensor StripModel::strip(const at::Tensor& part) {
  auto x = layer(part, inner_->weight, inner_->bias);
  if (options_.used_twice) x = layer(x, inner_->weight, inner_->bias);
  return layer(x, outer_->weight, outer_->bias);
}

StepOutput StripModel::training_step(Batch& batch, std::int64_t) {
  auto [x, y] = batch.unpack<2>();
  auto part = group_ ? scatter_to_group(x, 1, *group_) : x;
  at::Tensor result;
  if (options_.recomputed) {
    const auto holder = c10::make_intrusive<Recompute::Holder>(
        [this](const at::Tensor& input) { return strip(input); });
    result = Recompute::apply(part, head_->bias, holder);
  } else {
    result = strip(part);
  }
  if (group_) result = gather_from_group(result, 1, *group_);
  return (head_->forward(result) - y).square().sum(1).mean();
}

OptimizerConfigs StripModel::configure_optimizers() {
  if (options_.optimizer == Choice::kAdam) return Adam::make(*this, {.lr = 0.05});
  return SGD::make(*this, {.lr = 0.1, .momentum = 0.9});
}

void StripModel::on_before_optimizer_step(Optimizer&) {
  auto& step = gradients.emplace_back();
  for (const auto& item : named_parameters()) {
    if (item.value().grad().defined()) step[item.key()] = item.value().grad().clone();
  }
}

Values StripModel::weights() const {
  Values values;
  for (const auto& item : named_parameters()) values[item.key()] = item.value().detach().clone();
  return values;
}

TensorDataset strip_data(std::int64_t n) {
  const auto x = torch::arange(n * StripModel::kWidth, torch::kDouble)
                     .mul(1.37)
                     .sin()
                     .reshape({n, StripModel::kWidth});
  const auto y = torch::arange(n * 2, torch::kDouble).mul(0.83).cos().reshape({n, 2});
  return TensorDataset({x, y});
}

StripResult train_strips_here(const StripRun& run, const std::shared_ptr<World>& world) {
  auto options = run.trainer;
  std::int64_t data_ranks = 1;
  options.devices = 1;
  for (const auto& axis : run.mesh) {
    options.devices *= axis.size;
    if (axis.name == "data") data_ranks = axis.size;
  }
  if (!run.mesh.empty()) {
    options.strategy =
        DdpStrategy::make({.mesh = run.mesh, .reducer = run.reducer, .world = world});
  }
  options.loggers.emplace();
  options.enable_progress_bar = options.enable_model_summary = false;
  options.enable_checkpointing = !options.callbacks.empty();
  options.window_weighting = WindowWeighting::kRows;
  if (world != nullptr) options.signals = SignalHandling::kNone;
  if (!options.max_epochs) options.max_epochs = 1;
  const auto module = std::make_shared<StripModel>(run.model);
  const DataLoader loader(strip_data(run.samples), {.batch_size = run.joint_batch / data_ranks});
  Trainer trainer(options);
  auto fitted = trainer.fit(module, loader, {}, run.fit);
  return {module->gradients, module->weights(), fitted, trainer.is_global_zero()};
}

StripResult train_strips(const StripRun& run) {
  if (run.mesh.empty()) return train_strips_here(run, World::single());
  std::mutex mutex;
  int size = 1;
  for (const auto& axis : run.mesh) size *= axis.size;
  std::vector<StripResult> results(static_cast<std::size_t>(size));
  run_thread_ranks(size, [&](const std::shared_ptr<World>& world) {
    auto result = train_strips_here(run, world);
    const std::lock_guard<std::mutex> lock(mutex);
    results[static_cast<std::size_t>(world->rank())] = std::move(result);
  });
  for (const auto& other : results) expect_near(other, results.front(), 0);
  return results.front();
}

void expect_near(const Values& values, const Values& expected, double tolerance) {
  ASSERT_EQ(values.size(), expected.size());
  for (const auto& [name, value] : values) {
    ASSERT_TRUE(expected.contains(name)) << name;
    const auto difference = (value - expected.at(name)).abs().max().item<double>();
    EXPECT_LE(difference, tolerance) << name << " is " << value << ", not " << expected.at(name);
  }
}

void expect_near(const StripResult& result, const StripResult& expected, double tolerance) {
  ASSERT_EQ(result.gradients.size(), expected.gradients.size());
  for (std::size_t step = 0; step < result.gradients.size(); ++step) {
    SCOPED_TRACE("gradients of step " + std::to_string(step));
    expect_near(result.gradients[step], expected.gradients[step], tolerance);
  }
  expect_near(result.weights, expected.weights, tolerance);
}

}  // namespace fulmen
