#include "fulmen/core/support/state_dict.h"

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

const boost::json::value& find(const boost::json::object& object,
                               std::string_view key,
                               std::string_view where,
                               const char* wanted) {
  const boost::json::value* value =
      object.if_contains(boost::json::string_view(key.data(), key.size()));
  if (value == nullptr) {
    fail<CheckpointError>(where,
                          "the key '",
                          key,
                          "' (",
                          wanted,
                          ") is missing. The state is from another class or version.");
  }
  return *value;
}

std::string describe(const boost::json::value& value) {
  constexpr std::size_t kShown = 60;
  std::string text = boost::json::serialize(value);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return text;
}

[[noreturn]] void wrong_type(const boost::json::value& value,
                             std::string_view key,
                             std::string_view where,
                             const char* wanted) {
  fail<CheckpointError>(where,
                        "the key '",
                        key,
                        "' must hold ",
                        wanted,
                        ", found ",
                        describe(value),
                        ". The state is from another class or version.");
}

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Boost.JSON 1.81 reads about one double in five as its neighbour.
bool survives_text(double value) {
  boost::system::error_code error;
  const boost::json::value read =
      boost::json::parse(boost::json::serialize(boost::json::value(value)), error);
  return !error && read.is_double() && same_bits(read.get_double(), value);
}

bool parse_exact(std::string_view text, double& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && std::isfinite(value);
}

}  // namespace

std::int64_t require_int(const boost::json::object& object,
                         std::string_view key,
                         std::string_view where) {
  const boost::json::value& value = find(object, key, where, "an integer");
  if (value.is_int64()) return value.get_int64();
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value.is_uint64() && value.get_uint64() <= kMost) {
    return static_cast<std::int64_t>(value.get_uint64());
  }
  wrong_type(value, key, where, "an integer of 64 bits");
}

double require_double(const boost::json::object& object,
                      std::string_view key,
                      std::string_view where) {
  const boost::json::value& value = find(object, key, where, "a number");
  return json_to_double(value, std::string(where) + ", key '" + std::string(key) + "'");
}

bool require_bool(const boost::json::object& object, std::string_view key, std::string_view where) {
  const boost::json::value& value = find(object, key, where, "true or false");
  if (!value.is_bool()) wrong_type(value, key, where, "true or false");
  return value.get_bool();
}

std::string require_string(const boost::json::object& object,
                           std::string_view key,
                           std::string_view where) {
  const boost::json::value& value = find(object, key, where, "a string");
  if (!value.is_string()) wrong_type(value, key, where, "a string");
  return {value.get_string().data(), value.get_string().size()};
}

const boost::json::object& require_object(const boost::json::object& object,
                                          std::string_view key,
                                          std::string_view where) {
  const boost::json::value& value = find(object, key, where, "an object");
  if (!value.is_object()) wrong_type(value, key, where, "an object");
  return value.get_object();
}

const boost::json::array& require_array(const boost::json::object& object,
                                        std::string_view key,
                                        std::string_view where) {
  const boost::json::value& value = find(object, key, where, "an array");
  if (!value.is_array()) wrong_type(value, key, where, "an array");
  return value.get_array();
}

boost::json::value double_to_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (survives_text(value)) return value;
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  return boost::json::string(digits, static_cast<std::size_t>(end - digits));
}

double json_to_double(const boost::json::value& value, std::string_view where) {
  if (value.is_double()) return value.get_double();
  if (value.is_int64()) return static_cast<double>(value.get_int64());
  if (value.is_uint64()) return static_cast<double>(value.get_uint64());
  if (value.is_string()) {
    const std::string_view text(value.get_string().data(), value.get_string().size());
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return kInfinity;
    if (text == "-inf") return -kInfinity;
    if (double number = 0; parse_exact(text, number)) return number;
  }
  fail<CheckpointError>(where,
                        "must be a number, or one of \"nan\", \"inf\" and \"-inf\", found ",
                        describe(value),
                        ".");
}

}  // namespace fulmen
