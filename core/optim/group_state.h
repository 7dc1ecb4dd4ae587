#pragma once

#include <boost/json/object.hpp>
#include <cstddef>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulmen/core/optim/optimizer.h"

namespace fulmen::detail {

// The name under which a parameter's state is stored: its own, or "#<group>.<index>" while it has
// none.
std::string parameter_key(const NamedParameter& parameter, std::size_t group, std::size_t index);

struct Place {
  std::size_t group;
  std::size_t index;
};
std::map<std::string, Place, std::less<>> places_by_key(const Optimizer& optimizer);

// "<parameter>/<key>" in two; the key is empty if there is none.
std::pair<std::string_view, std::string_view> split_tensor_name(std::string_view name);

// {"optimizer": name, "groups": [{"parameters": [...], "hyperparameters": {...}}]}
boost::json::object groups_to_json(const Optimizer& optimizer);
// Adds to `problems` what does not fit; values of any shape may come in.
void check_groups(const Optimizer& optimizer,
                  const boost::json::object& values,
                  std::vector<std::string>& problems);
// The hyperparameters of a group in values that check_groups approved.
std::vector<std::pair<std::string, double>> saved_hyperparameters(const boost::json::object& values,
                                                                  std::size_t group);

// Throws CheckpointError with all problems, one a line, if there are any.
void fail_if_any(std::string_view where, const std::vector<std::string>& problems);

// Text of its parts, for one problem.
template <class... Parts>
std::string sentence(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

}  // namespace fulmen::detail
