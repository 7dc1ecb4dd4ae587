#include "fulmen/core/optim/grad_scaler.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fulmen/core/optim/clip_grad.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

constexpr const char* kName = "GradScaler";

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options) {
  const auto need = [](bool good, std::string_view option, std::string_view allowed, double value) {
    if (!good) fail<ConfigError>(kName, option, " must be ", allowed, ", got ", value, ".");
  };
  const auto& o = options_;
  need(o.init_scale > 0 && std::isfinite(o.init_scale),
       "init_scale",
       "above 0 and finite",
       o.init_scale);
  need(o.growth_factor > 1, "growth_factor", "above 1", o.growth_factor);
  need(o.backoff_factor > 0 && o.backoff_factor < 1,
       "backoff_factor",
       "in (0, 1)",
       o.backoff_factor);
  need(o.growth_interval >= 1,
       "growth_interval",
       "at least 1",
       static_cast<double>(o.growth_interval));
  scale_ = at::full({}, o.init_scale, at::kFloat);
  growth_tracker_ = at::zeros({}, at::kInt);
}

std::shared_ptr<GradScaler> GradScaler::make(GradScalerOptions options) {
  return std::shared_ptr<GradScaler>(new GradScaler(options));
}

void GradScaler::place_on(at::Device device) {
  if (scale_.device() == device) return;
  scale_ = scale_.to(device);
  growth_tracker_ = growth_tracker_.to(device);
}

at::Tensor GradScaler::scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  if (loss.device() != scale_.device()) place_on(loss.device());
  return loss * scale_.to(loss.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

at::Tensor GradScaler::unscale_gradients(std::span<const at::Tensor> gradients) {
  // In double, since the reciprocal of a large float32 scale may be denormal.
  const auto inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  auto found = at::zeros({}, scale_.options());
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> lists;
  for (const auto& gradient : gradients) {
    if (gradient.scalar_type() == at::kHalf) {
      fail<ConfigError>(kName,
                        "a gradient is float16, and dividing it would lose what the scale saved. ",
                        "Keep the parameters in float32 (precision 16-mixed).");
    }
    lists[{gradient.device().str(), gradient.scalar_type()}].push_back(gradient);
  }
  for (const auto& [key, list] : lists) {
    const auto device = list.front().device();
    auto found_there =
        device == found.device() ? found : at::zeros({}, found.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(list, found_there, inverse.to(device));
    if (device != found.device()) found.copy_(at::maximum(found, found_there.to(found.device())));
  }
  return found;
}

void GradScaler::unscale(const Optimizer& optimizer) {
  if (!options_.enabled) return;
  if (found_.contains(&optimizer)) {
    fail<ConfigError>(
        kName,
        "the gradients of this ",
        optimizer.name(),
        " were unscaled already in this window. Call update() after a step, or new_window() ",
        "if the step is left out.");
  }
  const at::NoGradGuard no_grad;
  const auto gradients = gradients_of(optimizer.all_parameters());
  if (!gradients.empty()) place_on(gradients.front().device());
  found_.emplace(&optimizer, unscale_gradients(gradients));
}

at::Tensor GradScaler::found_inf(const Optimizer& optimizer) const {
  const auto found = found_.find(&optimizer);
  return found == found_.end() ? at::Tensor() : found->second;
}

bool GradScaler::step(Optimizer& optimizer) {
  if (options_.enabled) {
    if (!found_.contains(&optimizer)) unscale(optimizer);
    if (found_.at(&optimizer).item<float>() != 0) return false;
  }
  optimizer.step();
  return true;
}

void GradScaler::reopen(const Optimizer& optimizer) {
  const auto found = found_.find(&optimizer);
  if (found == found_.end()) return;
  found_before_.push_back(found->second);
  found_.erase(found);
}

void GradScaler::update() {
  if (!found_.empty() || !found_before_.empty()) {
    const at::NoGradGuard no_grad;
    auto found = at::zeros({}, scale_.options());
    for (const auto& [optimizer, value] : found_)
      found = at::maximum(found, value.to(scale_.device()));
    for (const auto& value : found_before_) found = at::maximum(found, value.to(scale_.device()));
    at::_amp_update_scale_(scale_,
                           growth_tracker_,
                           found,
                           options_.growth_factor,
                           options_.backoff_factor,
                           options_.growth_interval);
  }
  new_window();
}

void GradScaler::new_window() {
  found_.clear();
  found_before_.clear();
}

double GradScaler::current_scale() const {
  return options_.enabled ? static_cast<double>(scale_.item<float>()) : 1.0;
}

StateDict GradScaler::state_dict() const {
  StateDict state;
  state.values["scale"] = double_to_json(static_cast<double>(scale_.item<float>()));
  state.values["growth_tracker"] = growth_tracker_.item<int>();
  return state;
}

void GradScaler::load_state_dict(const StateDict& state) {
  const double scale = require_double(state.values, "scale", kName);
  const auto tracker = require_int(state.values, "growth_tracker", kName);
  if (!(scale > 0) || !std::isfinite(scale)) {
    fail<CheckpointError>(kName, "scale must be above 0 and finite, got ", scale, ".");
  }
  if (tracker < 0)
    fail<CheckpointError>(kName, "growth_tracker must be at least 0, got ", tracker, ".");
  scale_.fill_(scale);
  growth_tracker_.fill_(tracker);
  new_window();
}

}  // namespace fulmen
