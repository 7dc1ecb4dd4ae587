#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <string_view>

namespace fulmen::detail {

/// An object as text from which parse_json gives back the same values, doubles bitwise.
std::string json_text(const boost::json::object& object);

/// Throws CheckpointError, with `where` in front, for text that is not one JSON object or that has
/// the same key twice in one object.
boost::json::object parse_json(std::string_view text, std::string_view where);

}  // namespace fulmen::detail
