#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "fulmen/core/metrics/log_options.h"

namespace fulmen::detail {

/// "mean", "sum", "min", "max".
std::string_view to_string(MetricReduction reduce);

/// One number: on the host, or in a tensor without dims of its own on a device that nobody has
/// waited for.
struct MetricValue {
  double number = 0;
  at::Tensor tensor = {};  ///< Defined: this is the value, and `number` means nothing.
};

/// Reads a tensor of one element in plain CPU memory. False: it is not one, or it is in need of a
/// closer look.
bool read_cpu_scalar(const at::Tensor& tensor, double& number);

/// A copy of the value of a tensor of one element. Throws ConfigError that names the metric if it
/// is not one.
MetricValue copy_value(std::string_view metric, const at::Tensor& tensor);

/// Waits for the device once for all values of one device and dtype.
std::vector<double> read_values(std::span<const MetricValue* const> values);

/// A sum, mean, minimum or maximum that goes on.
class MetricTotal {
 public:
  MetricTotal() = default;
  MetricTotal(double total, double weight, std::int64_t count)
      : total_{total}, weight_(weight), count_(count) {}

  /// A value of weight 0 does not count in a mean, whatever it is.
  void add(const MetricValue& value, MetricReduction reduce, double weight);
  bool empty() const { return count_ == 0; }
  /// Goes on with what another rank has summed. Both on the host.
  void merge(const MetricTotal& other, MetricReduction reduce);
  /// Not for an empty total.
  MetricValue result(MetricReduction reduce) const;

  const MetricValue& total() const { return total_; }
  double weight() const { return weight_; }
  std::int64_t count() const { return count_; }

 private:
  void add_on_device(const MetricValue& value, MetricReduction reduce, double weight);

  MetricValue total_;
  double weight_ = 0;
  std::int64_t count_ = 0;
};

}  // namespace fulmen::detail
