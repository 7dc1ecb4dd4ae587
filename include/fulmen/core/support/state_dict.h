#pragma once

#include <ATen/core/Tensor.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace fulmen {

/// Tensors by name, in the order of the names.
using TensorMap = std::map<std::string, at::Tensor>;

/// State of an object in a checkpoint: plain values as JSON, and tensors. It is data, never code.
struct StateDict {
  boost::json::object values = {};
  TensorMap tensors = {};

  bool empty() const { return values.empty() && tensors.empty(); }
};

/// Readers for values that come from a file. `where` names the owner in the message.
/// Each throws CheckpointError if the key is missing or of another type.
std::int64_t require_int(const boost::json::object& object,
                         std::string_view key,
                         std::string_view where);
double require_double(const boost::json::object& object,
                      std::string_view key,
                      std::string_view where);
bool require_bool(const boost::json::object& object, std::string_view key, std::string_view where);
std::string require_string(const boost::json::object& object,
                           std::string_view key,
                           std::string_view where);
const boost::json::object& require_object(const boost::json::object& object,
                                          std::string_view key,
                                          std::string_view where);
const boost::json::array& require_array(const boost::json::object& object,
                                        std::string_view key,
                                        std::string_view where);

/// A double as JSON; bitwise the same after json_to_double, also through a file. JSON has no NaN or
/// infinity: these become the strings "nan", "inf" and "-inf". A number that Boost's parser would
/// round to a neighbour becomes a string with its shortest exact digits.
boost::json::value double_to_json(double value);
/// Throws CheckpointError if it is neither a number nor such a string.
double json_to_double(const boost::json::value& value, std::string_view where);

}  // namespace fulmen
