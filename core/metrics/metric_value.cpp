#include "core/metrics/metric_value.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <cmath>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

/// Totals outlive the mode in which a value was logged, and are changed in place.
class PlainTensorMode {
  c10::InferenceMode normal_{false};
  at::NoGradGuard no_grad_;
};

at::ScalarType total_dtype(c10::Device device) {
  return device.is_mps() ? at::kFloat : at::kDouble;
}

at::Tensor as_tensor(const MetricValue& value, c10::Device device) {
  if (value.tensor.defined()) return value.tensor.to(device, total_dtype(device));
  return at::full({}, value.number, at::TensorOptions(device).dtype(total_dtype(device)));
}

double smaller(double a, double b) {
  return std::isnan(b) || b < a ? b : a;
}
double larger(double a, double b) {
  return std::isnan(b) || b > a ? b : a;
}

}  // namespace

std::string_view to_string(MetricReduction reduce) {
  constexpr std::array<std::string_view, 4> kNames = {"mean", "sum", "min", "max"};
  return kNames[static_cast<std::size_t>(reduce)];
}

bool read_cpu_scalar(const at::Tensor& tensor, double& number) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!tensor.defined() || !impl.is_cpu() || impl.numel() != 1 || impl.layout() != at::kStrided ||
      tensor.is_neg() || !impl.has_storage()) {
    return false;
  }
  const void* data = tensor.const_data_ptr();
  if (data == nullptr) return false;
  const auto read = [&]<class T>(const T* typed) {
    number = static_cast<double>(*typed);
    return true;
  };
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return read(static_cast<const float*>(data));
    case at::kDouble:
      return read(static_cast<const double*>(data));
    case at::kHalf:
      return read(static_cast<const c10::Half*>(data));
    case at::kBFloat16:
      return read(static_cast<const c10::BFloat16*>(data));
    case at::kLong:
      return read(static_cast<const std::int64_t*>(data));
    case at::kInt:
      return read(static_cast<const std::int32_t*>(data));
    case at::kBool:
      return read(static_cast<const bool*>(data));
    default:
      return false;
  }
}

MetricValue copy_value(std::string_view metric, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    fail<ConfigError>("log", "the value of metric '", metric, "' is an undefined tensor.");
  }
  if (tensor.numel() != 1) {
    fail<ConfigError>("log",
                      "the value of metric '",
                      metric,
                      "' must be a number or a tensor of one element, got shape ",
                      tensor.sizes(),
                      ". Log its mean() or sum(), or one element of it.");
  }
  if (tensor.is_complex()) {
    fail<ConfigError>("log",
                      "the value of metric '",
                      metric,
                      "' must be real, got ",
                      tensor.scalar_type(),
                      ". Log its abs(), or its real and imaginary parts.");
  }
  const PlainTensorMode mode;
  const at::Tensor dense = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
  const at::Tensor copy =
      dense.to(total_dtype(dense.device()), /*non_blocking=*/false, /*copy=*/true);
  return {.tensor = copy.dim() == 0 ? copy : copy.reshape({})};
}

std::vector<double> read_values(std::span<const MetricValue* const> values) {
  std::vector<double> numbers(values.size());
  std::vector<at::Tensor> tensors;
  std::vector<std::size_t> places;
  const auto flush = [&] {
    if (tensors.empty()) return;
    const at::Tensor packed = at::stack(tensors).to(at::Device(at::kCPU)).to(at::kDouble);
    for (std::size_t i = 0; i < places.size(); ++i)
      numbers[places[i]] = packed.const_data_ptr<double>()[i];
    tensors.clear();
    places.clear();
  };
  const PlainTensorMode mode;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const at::Tensor& tensor = values[i]->tensor;
    numbers[i] = values[i]->number;
    if (!tensor.defined()) continue;
    if (!tensors.empty() && tensors.front().device() != tensor.device()) flush();
    tensors.push_back(tensor);
    places.push_back(i);
  }
  flush();
  return numbers;
}

void MetricTotal::merge(const MetricTotal& other, MetricReduction reduce) {
  if (other.empty()) return;
  if (empty()) {
    *this = other;
    return;
  }
  // A mean is kept as the sum of value * weight.
  const auto weight = weight_ + other.weight_;
  const auto how = reduce == MetricReduction::kMean ? MetricReduction::kSum : reduce;
  const auto count = count_ + other.count_;
  add(other.total_, how, 1);
  weight_ = weight;
  count_ = count;
}

void MetricTotal::add(const MetricValue& value, MetricReduction reduce, double weight) {
  if (reduce == MetricReduction::kMean) {
    if (weight == 0) return;
    weight_ += weight;
  }
  ++count_;
  if (value.tensor.defined() || total_.tensor.defined())
    return add_on_device(value, reduce, weight);
  double& total = total_.number;
  switch (reduce) {
    case MetricReduction::kMean:
      total += value.number * weight;
      return;
    case MetricReduction::kSum:
      total += value.number;
      return;
    case MetricReduction::kMin:
      total = count_ == 1 ? value.number : smaller(total, value.number);
      return;
    case MetricReduction::kMax:
      total = count_ == 1 ? value.number : larger(total, value.number);
      return;
  }
}

void MetricTotal::add_on_device(const MetricValue& value, MetricReduction reduce, double weight) {
  const PlainTensorMode mode;
  const bool starts_here = !total_.tensor.defined();
  const c10::Device device = (starts_here ? value : total_).tensor.device();
  const at::Tensor number = as_tensor(value, device);
  if (starts_here) total_.tensor = as_tensor(total_, device);
  switch (reduce) {
    case MetricReduction::kMean:
      total_.tensor.add_(number, weight);
      return;
    case MetricReduction::kSum:
      total_.tensor.add_(number);
      return;
    case MetricReduction::kMin:
      total_.tensor = count_ == 1 ? number : at::minimum(total_.tensor, number);
      return;
    case MetricReduction::kMax:
      total_.tensor = count_ == 1 ? number : at::maximum(total_.tensor, number);
      return;
  }
}

MetricValue MetricTotal::result(MetricReduction reduce) const {
  const bool mean = reduce == MetricReduction::kMean;
  if (!total_.tensor.defined()) return {.number = mean ? total_.number / weight_ : total_.number};
  const PlainTensorMode mode;
  return {.tensor = mean ? total_.tensor.div(weight_) : total_.tensor.clone()};
}

}  // namespace fulmen::detail
