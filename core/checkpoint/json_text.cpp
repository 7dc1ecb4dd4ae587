#include "core/checkpoint/json_text.h"

#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <set>
#include <utility>
#include <vector>

#include "fulmen/core/support/error.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen::detail {
namespace {

constexpr std::size_t kMaxDepth = 100;

/// A double that is not a JSON number becomes an object with this single key.
constexpr const char* kExactDouble = "fulmen.double";

/// Sees the events of Boost's parser, whose own objects silently keep the last of equal keys.
class DuplicateKeyFinder {
 public:
  static constexpr std::size_t max_object_size = std::size_t(-1);
  static constexpr std::size_t max_array_size = std::size_t(-1);
  static constexpr std::size_t max_key_size = std::size_t(-1);
  static constexpr std::size_t max_string_size = std::size_t(-1);
  using Text = boost::json::string_view;
  using Code = boost::json::error_code;

  bool on_document_begin(Code&) { return true; }
  bool on_document_end(Code&) { return true; }
  bool on_object_begin(Code&) {
    keys_.emplace_back();
    return true;
  }
  bool on_object_end(std::size_t, Code&) {
    keys_.pop_back();
    return true;
  }
  bool on_array_begin(Code&) { return true; }
  bool on_array_end(std::size_t, Code&) { return true; }
  bool on_key_part(Text part, std::size_t, Code&) {
    key_.append(part.data(), part.size());
    return true;
  }
  bool on_key(Text part, std::size_t, Code& code) {
    key_.append(part.data(), part.size());
    const bool fresh = keys_.back().insert(key_).second;
    if (!fresh) {
      duplicate_ = key_;
      code = boost::json::error::exception;
    }
    key_.clear();
    return fresh;
  }
  bool on_string_part(Text, std::size_t, Code&) { return true; }
  bool on_string(Text, std::size_t, Code&) { return true; }
  bool on_number_part(Text, Code&) { return true; }
  bool on_int64(std::int64_t, Text, Code&) { return true; }
  bool on_uint64(std::uint64_t, Text, Code&) { return true; }
  bool on_double(double, Text, Code&) { return true; }
  bool on_bool(bool, Code&) { return true; }
  bool on_null(Code&) { return true; }
  bool on_comment_part(Text, Code&) { return true; }
  bool on_comment(Text, Code&) { return true; }

  const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string key_;
  std::string duplicate_;
};

boost::json::parse_options options() {
  boost::json::parse_options result;
  result.max_depth = kMaxDepth;
  return result;
}

void refuse_duplicate_keys(std::string_view text, std::string_view where) {
  boost::json::basic_parser<DuplicateKeyFinder> parser(options());
  boost::json::error_code error;
  parser.write_some(false, text.data(), text.size(), error);
  if (!parser.handler().duplicate().empty()) {
    fail<CheckpointError>(where,
                          "the key '",
                          parser.handler().duplicate(),
                          "' stands twice in one object. The file is damaged or hostile.");
  }
}

/// Replaces doubles that the text cannot carry.
void encode(boost::json::value& value) {
  if (value.is_double()) {
    boost::json::value text = double_to_json(value.get_double());
    if (text.is_string()) value = boost::json::object{{kExactDouble, std::move(text)}};
  } else if (value.is_object()) {
    for (auto& member : value.get_object()) encode(member.value());
  } else if (value.is_array()) {
    for (auto& element : value.get_array()) encode(element);
  }
}

void decode(boost::json::value& value, std::string_view where) {
  if (value.is_array()) {
    for (auto& element : value.get_array()) decode(element, where);
  } else if (value.is_object()) {
    boost::json::object& object = value.get_object();
    const boost::json::value* text = object.if_contains(kExactDouble);
    if (text != nullptr && object.size() == 1) {
      const double number = json_to_double(*text, where);
      value = number;
      return;
    }
    for (auto& member : object) decode(member.value(), where);
  }
}

}  // namespace

std::string json_text(const boost::json::object& object) {
  boost::json::value copy = object;
  encode(copy);
  return boost::json::serialize(copy);
}

boost::json::object parse_json(std::string_view text, std::string_view where) {
  boost::json::error_code error;
  const boost::json::string_view view(text.data(), text.size());
  boost::json::value value = boost::json::parse(view, error, {}, options());
  if (error) {
    fail<CheckpointError>(where, "is not valid JSON: ", error.message(), ". The file is damaged.");
  }
  if (!value.is_object()) {
    fail<CheckpointError>(where, "must hold a JSON object. The file is damaged.");
  }
  refuse_duplicate_keys(text, where);
  decode(value, where);
  return std::move(value.get_object());
}

}  // namespace fulmen::detail
