#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "fulmen/core/optim/optimizer.h"

namespace fulmen::detail {

// A hyperparameter of every group, as a list in a scheduler's state.
boost::json::array rates_to_json(const Optimizer& optimizer, std::string_view key);
boost::json::array rates_to_json(std::span<const double> rates);
void set_rates(Optimizer& optimizer, std::string_view key, std::span<const double> rates);
// Throws CheckpointError unless there are `count` finite values, none below 0.
std::vector<double> read_rates(const boost::json::object& values,
                               std::string_view key,
                               std::size_t count,
                               std::string_view where);

// Throws CheckpointError if the state is that of another scheduler.
void check_scheduler_name(const boost::json::object& values, std::string_view name);

}  // namespace fulmen::detail
