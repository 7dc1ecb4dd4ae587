#include "tools/run/messages.h"

#include <boost/json.hpp>
#include <limits>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

namespace json = boost::json;

constexpr std::size_t kLongestText = 8192;

[[noreturn]] void fail_message(const std::string& what) {
  fail<DistributedError>("fulmen-run", "a message that cannot be read: ", what, ".");
}

/// Writes the members of a message.
class Writer {
 public:
  explicit Writer(const char* type) { object_["type"] = type; }

  void member(const char* name, int value, int = 0, int = 0) { object_[name] = value; }
  void member(const char* name, std::uint16_t value) { object_[name] = value; }
  void member(const char* name, bool value) { object_[name] = value; }
  void member(const char* name, const std::string& value) {
    object_[name] = value.size() <= kLongestText ? value : value.substr(0, kLongestText) + "...";
  }
  std::string text() const { return json::serialize(object_); }

 private:
  json::object object_;
};

/// Reads them, with the same calls.
class Reader {
 public:
  explicit Reader(const json::object& object) : object_(object) {}

  void member(const char* name,
              int& value,
              int least = 0,
              int most = std::numeric_limits<int>::max()) const {
    const auto* found = object_.if_contains(name);
    if (found == nullptr || !found->is_int64() || found->get_int64() < least ||
        found->get_int64() > most) {
      fail_message(name);
    }
    value = static_cast<int>(found->get_int64());
  }
  void member(const char* name, std::uint16_t& value) const {
    int number = 0;
    member(name, number, 0, 65535);
    value = static_cast<std::uint16_t>(number);
  }
  void member(const char* name, bool& value) const {
    const auto* found = object_.if_contains(name);
    if (found == nullptr || !found->is_bool()) fail_message(name);
    value = found->get_bool();
  }
  void member(const char* name, std::string& value) const {
    const auto* found = object_.if_contains(name);
    if (found == nullptr || !found->is_string()) fail_message(name);
    value = std::string(found->get_string());
  }

 private:
  const json::object& object_;
};

constexpr int kMost = 1 << 24;  // So that sums of such numbers are numbers too.

// One list of members for both directions.
template <class Visitor>
void visit_members(Visitor& visitor, auto& message) {
  using T = std::remove_cvref_t<decltype(message)>;
  if constexpr (std::is_same_v<T, Join>) {
    visitor.member("job", message.job);
    visitor.member("min_nodes", message.min_nodes, 1, kMost);
    visitor.member("max_nodes", message.max_nodes, 1, kMost);
    visitor.member("max_restarts", message.max_restarts, 0, kMost);
    visitor.member("ranks", message.ranks, 1, 1 << 12);
    visitor.member("order", message.order, -1, kAnyOrder);
    visitor.member("host", message.host);
    visitor.member("rounds", message.rounds, 0, kMost);
    visitor.member("restarts", message.restarts, 0, kMost);
  } else if constexpr (std::is_same_v<T, Refusal>) {
    visitor.member("text", message.text);
    visitor.member("again", message.again);
  } else if constexpr (std::is_same_v<T, StartRound>) {
    visitor.member("round", message.round);
    visitor.member("restarts", message.restarts);
    visitor.member("node", message.node);
    visitor.member("nodes", message.nodes, 1, kMost);
    visitor.member("first_rank", message.first_rank, 0, kMost);
    visitor.member("world_size", message.world_size, 1, kMost);
    visitor.member("prefix", message.prefix);
    visitor.member("port", message.port);
  } else if constexpr (std::is_same_v<T, StopRound>) {
    visitor.member("round", message.round);
    visitor.member("reason", message.reason);
    visitor.member("grace_ms", message.grace_ms);
  } else if constexpr (std::is_same_v<T, RankFailure>) {
    visitor.member("round", message.round);
    visitor.member("rank", message.rank);
    visitor.member("code", message.code, 1, 255);
    visitor.member("text", message.text);
    visitor.member("last_lines", message.last_lines);
  } else if constexpr (std::is_same_v<T, RoundDone> || std::is_same_v<T, RoundStopped>) {
    visitor.member("round", message.round);
  } else if constexpr (std::is_same_v<T, SignalRanks>) {
    visitor.member("number", message.number, 1, 64);
  } else if constexpr (std::is_same_v<T, EndJob>) {
    visitor.member("code", message.code, 0, 255);
    visitor.member("text", message.text);
  }
}

template <class T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, Join>) return "join";
  if constexpr (std::is_same_v<T, Refusal>) return "refusal";
  if constexpr (std::is_same_v<T, StartRound>) return "start";
  if constexpr (std::is_same_v<T, StopRound>) return "stop";
  if constexpr (std::is_same_v<T, RankFailure>) return "failure";
  if constexpr (std::is_same_v<T, RoundDone>) return "done";
  if constexpr (std::is_same_v<T, RoundStopped>) return "stopped";
  if constexpr (std::is_same_v<T, SignalRanks>) return "signal";
  if constexpr (std::is_same_v<T, EndJob>) return "end";
  if constexpr (std::is_same_v<T, Beat>) return "beat";
}

template <std::size_t kIndex = 0>
Message read_type(const std::string& type, const json::object& object) {
  if constexpr (kIndex == std::variant_size_v<Message>) {
    fail_message("type " + type.substr(0, 40));
  } else {
    using T = std::variant_alternative_t<kIndex, Message>;
    if (type != type_name<T>()) return read_type<kIndex + 1>(type, object);
    T message;
    const Reader reader(object);
    visit_members(reader, message);
    return message;
  }
}

}  // namespace

std::string to_text(const Message& message) {
  return std::visit(
      [](const auto& one) {
        Writer writer(type_name<std::remove_cvref_t<decltype(one)>>());
        visit_members(writer, one);
        return writer.text();
      },
      message);
}

Message parse_message(std::string_view text) {
  json::error_code error;
  json::parse_options options;
  options.max_depth = 4;
  options.allow_invalid_utf8 = true;  // Ranks write what they like.
  const auto value = json::parse(text, error, {}, options);
  if (error || !value.is_object()) fail_message("not a JSON object");
  std::string type;
  Reader(value.get_object()).member("type", type);
  return read_type(type, value.get_object());
}

}  // namespace fulmen::detail
