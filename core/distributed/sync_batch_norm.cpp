#include "fulmen/core/distributed/sync_batch_norm.h"

#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/device_mesh.h"
#include "fulmen/core/distributed/sharded_context.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kName = "SyncBatchNorm";

at::ScalarType wide_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor to_wide(const at::Tensor& parameter, const at::Tensor& input) {
  return parameter.defined() ? parameter.to(wide_type(input)) : parameter;
}

/// Of the rows of all ranks.
struct Joint : torch::CustomClassHolder {
  at::Tensor mean;
  at::Tensor variance;          ///< Biased.
  double count = 0;             ///< Values per channel.
  bool differentiates = false;  ///< Whether a rank wants the gradient of its input.
  double eps = 0;
  std::optional<ProcessGroup> group;
};

/// Means and sums of squared deviations of the ranks are put together, which loses nothing to
/// cancellation as sums of squares would. In double: counts are exact, and the same bits on all.
c10::intrusive_ptr<Joint> joint_statistics(const at::Tensor& input,
                                           double eps,
                                           const ProcessGroup& group) {
  const auto channels = input.size(1);
  const auto count = input.numel() / std::max<std::int64_t>(channels, 1);
  auto mine = at::zeros({2 * channels + 2}, input.options().dtype(at::kDouble));
  if (count > 0) {
    const auto [mean, variance] =
        at::batch_norm_update_stats(input.detach().to(wide_type(input)), {}, {}, /*momentum=*/0);
    mine.narrow(0, 0, channels).copy_(mean);
    mine.narrow(0, channels, channels).copy_(variance).mul_(count);
    mine[-2] = count;
  }
  mine[-1] = at::GradMode::is_enabled() && input.requires_grad() ? 1 : 0;
  const auto all = all_gather(mine, group);
  const auto means = all.narrow(1, 0, channels);
  const auto counts = all.narrow(1, 2 * channels, 1);
  const auto totals = all.narrow(1, 2 * channels, 2).sum(0).cpu();
  auto joint = c10::make_intrusive<Joint>();
  joint->count = totals[0].item<double>();
  joint->differentiates = totals[1].item<double>() > 0;
  joint->eps = eps;
  joint->group = group;
  if (joint->count <= 1) {
    fail<ConfigError>(kName,
                      "training needs more than 1 value per channel; the inputs of all ranks of ",
                      group.describe(),
                      " have ",
                      joint->count,
                      ", and this rank's has shape ",
                      input.sizes(),
                      ".");
  }
  joint->mean = (means * counts).sum(0) / joint->count;
  const auto within = all.narrow(1, channels, channels).sum(0);
  const auto between = ((means - joint->mean).square() * counts).sum(0);
  joint->variance = (within + between) / joint->count;
  return joint;
}

/// Its operations record nothing. Where a second derivative would have to pass, an error is due,
/// not a gradient with terms missing.
void refuse_second_derivative(variable_list& gradients) {
  if (!at::GradMode::is_enabled()) return;
  for (auto& gradient : gradients) {
    if (!gradient.defined()) continue;
    const auto refusal = std::make_shared<torch::autograd::DelayedError>(
        "Fulmen's SyncBatchNorm has no second derivative.", 1);
    gradient = (*refusal)({gradient.detach().requires_grad_()})[0];
  }
}

struct NormFunction : torch::autograd::Function<NormFunction> {
  static at::Tensor forward(AutogradContext* context,
                            const at::Tensor& input,
                            const std::optional<at::Tensor>& its_weight,
                            const std::optional<at::Tensor>& its_bias,
                            const c10::intrusive_ptr<Joint>& joint) {
    const auto weight = its_weight.value_or(at::Tensor());
    const auto bias = its_bias.value_or(at::Tensor());
    context->saved_data["joint"] = c10::IValue::make_capsule(joint);
    context->save_for_backward({input, weight});
    if (input.numel() == 0) return at::empty_like(input);
    const auto type = wide_type(input);
    return std::get<0>(at::native_batch_norm(input,
                                             to_wide(weight, input),
                                             to_wide(bias, input),
                                             joint->mean.to(type),
                                             joint->variance.to(type),
                                             /*training=*/false,
                                             /*momentum=*/0,
                                             joint->eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto joint =
        c10::static_intrusive_pointer_cast<Joint>(context->saved_data["joint"].toCapsule());
    const auto saved = context->get_saved_variables();
    variable_list result(4);
    {
      const at::NoGradGuard no_grad;
      result = differentiate(*joint, gradients[0], saved[0], saved[1]);
      if (!context->needs_input_grad(0)) result[0] = at::Tensor();
    }
    refuse_second_derivative(result);
    return result;
  }

 private:
  static variable_list differentiate(const Joint& joint,
                                     const at::Tensor& gradient,
                                     const at::Tensor& input,
                                     const at::Tensor& weight) {
    const auto channels = input.size(1);
    const auto type = wide_type(input);
    const auto mean = joint.mean.to(type);
    const auto wide_weight = to_wide(weight, input);
    auto scaled_sum = at::zeros({channels}, mean.options());  // Of gradient x normalized input.
    auto sum = at::zeros_like(scaled_sum);
    if (input.numel() > 0) {
      std::tie(std::ignore, scaled_sum, sum) =
          at::native_batch_norm_backward(gradient,
                                         input,
                                         wide_weight,
                                         mean,
                                         joint.variance.to(type),
                                         {},
                                         {},
                                         /*train=*/false,
                                         joint.eps,
                                         {false, true, true});
    }
    variable_list result(4);
    if (weight.defined()) {
      result[1] = scaled_sum.to(weight.scalar_type());
      result[2] = sum.to(weight.scalar_type());
    }
    if (!joint.differentiates) return result;
    auto sums = at::stack({scaled_sum, sum}).to(at::kDouble);
    all_reduce(sums, ReduceOp::kSum, *joint.group);
    sums.div_(joint.count);
    // gradient * a - (input - mean) * b - c
    const auto inverse = (joint.variance + joint.eps).rsqrt();
    const auto a = weight.defined() ? inverse * weight : inverse;
    const auto b = a * inverse * sums[0];
    const auto c = a * sums[1];
    std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
    shape[1] = channels;
    const auto per_channel = [&](const at::Tensor& values) {
      return values.to(type).reshape(shape);
    };
    auto part = input.to(type) - per_channel(mean);
    part.mul_(per_channel(-b)).sub_(per_channel(c));
    result[0] = part.addcmul_(gradient.to(type), per_channel(a)).to(input.scalar_type());
    return result;
  }
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& norm_options,
                                     std::optional<ProcessGroup> group)
    : options(norm_options), group_(std::move(group)) {
  if (!group_ && in_sharded_context()) group_ = current_mesh().data_group();
  SyncBatchNormImpl::reset();
}

void SyncBatchNormImpl::reset() {
  const std::vector<std::int64_t> shape = {options.num_features()};
  Buffers buffers;
  if (options.track_running_stats())
    buffers = {at::empty(shape), at::empty(shape), at::empty({}, at::kLong)};
  if (options.affine()) {
    const auto options_of_both = at::TensorOptions().requires_grad(true);
    connect(torch::empty(shape, options_of_both), torch::empty(shape, options_of_both), buffers);
  } else {
    connect({}, {}, buffers);
  }
  reset_parameters();
}

void SyncBatchNormImpl::connect(const at::Tensor& its_weight,
                                const at::Tensor& its_bias,
                                const Buffers& its) {
  const auto parameter = [&](const char* name, const at::Tensor& tensor) {
    return register_parameter(name, tensor, tensor.defined() && tensor.requires_grad());
  };
  weight = parameter("weight", its_weight);
  bias = parameter("bias", its_bias);
  running_mean = register_buffer("running_mean", its.mean);
  running_var = register_buffer("running_var", its.var);
  num_batches_tracked = register_buffer("num_batches_tracked", its.count);
}

void SyncBatchNormImpl::reset_parameters() {
  reset_running_stats();
  if (!options.affine()) return;
  torch::nn::init::ones_(weight);
  torch::nn::init::zeros_(bias);
}

void SyncBatchNormImpl::reset_running_stats() {
  if (!options.track_running_stats()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void SyncBatchNormImpl::check(const at::Tensor& input) const {
  if (input.dim() >= 2 && input.size(1) == options.num_features()) return;
  fail<ConfigError>(kName,
                    "the input has to be (N, ",
                    options.num_features(),
                    ", ...), as num_features says; got ",
                    input.sizes(),
                    ".");
}

double SyncBatchNormImpl::next_factor() {
  if (!options.track_running_stats()) return 0;
  num_batches_tracked += 1;
  return options.momentum() ? *options.momentum() : 1 / num_batches_tracked.item<double>();
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check(input);
  if (!is_training()) return forward_alone(input);
  if (!group_) {
    fail<ConfigError>(kName,
                      "it does not know its ranks. Make it in configure_sharded_model(), or say ",
                      "the group: SyncBatchNorm(options, group), or set_group().");
  }
  return group_->size() == 1 ? forward_alone(input) : forward_jointly(input, *group_);
}

at::Tensor SyncBatchNormImpl::forward_alone(const at::Tensor& input) {
  const double factor = is_training() ? next_factor() : 0;
  return torch::nn::functional::detail::batch_norm(input,
                                                   running_mean,
                                                   running_var,
                                                   weight,
                                                   bias,
                                                   is_training() || !options.track_running_stats(),
                                                   factor,
                                                   options.eps());
}

at::Tensor SyncBatchNormImpl::forward_jointly(const at::Tensor& input, const ProcessGroup& group) {
  const auto joint = joint_statistics(input, options.eps(), group);
  if (options.track_running_stats()) {
    const at::NoGradGuard no_grad;
    const double factor = next_factor();
    const auto unbiased = joint->variance * (joint->count / (joint->count - 1));
    running_mean.mul_(1 - factor).add_(joint->mean.to(running_mean.scalar_type()), factor);
    running_var.mul_(1 - factor).add_(unbiased.to(running_var.scalar_type()), factor);
  }
  const auto given = [](const at::Tensor& parameter) {
    return parameter.defined() ? std::optional(parameter) : std::nullopt;
  };
  return NormFunction::apply(input, given(weight), given(bias), joint);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "fulmen::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum()) {
    stream << *options.momentum();
  } else {
    stream << "None";
  }
  stream << std::boolalpha << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ')';
}

}  // namespace fulmen
