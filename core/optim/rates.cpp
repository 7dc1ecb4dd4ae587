#include "rates.h"

#include <cmath>
#include <string>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {

boost::json::array rates_to_json(const Optimizer& optimizer, std::string_view key) {
  boost::json::array rates;
  for (std::size_t group = 0; group < optimizer.group_count(); ++group) {
    rates.push_back(double_to_json(optimizer.hyperparameter(group, key)));
  }
  return rates;
}

boost::json::array rates_to_json(std::span<const double> values) {
  boost::json::array rates;
  for (const double value : values) rates.push_back(double_to_json(value));
  return rates;
}

void set_rates(Optimizer& optimizer, std::string_view key, std::span<const double> rates) {
  for (std::size_t group = 0; group < rates.size(); ++group) {
    optimizer.set_hyperparameter(group, key, rates[group]);
  }
}

std::vector<double> read_rates(const boost::json::object& values,
                               std::string_view key,
                               std::size_t count,
                               std::string_view where) {
  std::vector<double> rates;
  for (const auto& value : require_array(values, key, where)) {
    rates.push_back(json_to_double(value, where));
    if (std::isfinite(rates.back()) && rates.back() >= 0) continue;
    fail<CheckpointError>(
        where, key, " holds ", rates.back(), "; it must be finite and not below 0.");
  }
  if (rates.size() != count) {
    fail<CheckpointError>(
        where, key, " holds ", rates.size(), " values, and the optimizer has ", count, " groups.");
  }
  return rates;
}

void check_scheduler_name(const boost::json::object& values, std::string_view name) {
  const auto saved = require_string(values, "scheduler", name);
  if (saved != name) fail<CheckpointError>(name, "the state is that of a ", saved, ".");
}

}  // namespace fulmen::detail
