#include "fulmen/callbacks/checkpoint_name.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

constexpr std::string_view kWhere = "ModelCheckpoint";

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 32 || c == 127;
}

bool is_counter(std::string_view key) {
  return key == "epoch" || key == "step";
}

[[noreturn]] void malformed(std::string_view text, std::string_view reason) {
  fail<ConfigError>(kWhere,
                    "filename '",
                    text,
                    "' ",
                    reason,
                    " An example that works: \"{epoch}-{step}-{val_loss:.2f}\".");
}

std::size_t read_digits(std::string_view text, std::size_t at, int& number) {
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
  return error == std::errc() ? static_cast<std::size_t>(end - text.data()) : at;
}

std::string shortest(double value) {
  std::array<char, 32> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc() ? std::string(buffer.data(), end) : std::string("nan");
}

}  // namespace

CheckpointNameTemplate::CheckpointNameTemplate(std::string_view text, Insert insert)
    : text_(text), insert_(insert) {
  if (text.empty()) malformed(text, "is empty.");
  if (text.front() == '.') malformed(text, "starts with '.', which is kept for unfinished files.");
  if (text == "last" || text == "best") malformed(text, "is the name of a pointer file.");
  for (std::size_t at = 0; at < text.size();) {
    if (text[at] == '{') {
      const auto close = text.find('}', at);
      if (close == std::string_view::npos) malformed(text, "has a '{' without '}'.");
      pieces_.push_back(parse_key(text.substr(at + 1, close - at - 1)));
      at = close + 1;
      continue;
    }
    const auto end = std::min(text.find('{', at), text.size());
    const auto literal = text.substr(at, end - at);
    for (const char c : literal) {
      if (c == '}') malformed(text, "has a '}' without '{'.");
      if (c == '/') malformed(text, "has a '/' outside braces. Put folders into dirpath.");
      if (is_control(c)) malformed(text, "has a control character.");
    }
    pieces_.push_back({.literal = std::string(literal)});
    at = end;
  }
}

CheckpointNameTemplate::Piece CheckpointNameTemplate::parse_key(std::string_view inside) const {
  const auto colon = std::min(inside.find(':'), inside.size());
  Piece piece{.key = std::string(inside.substr(0, colon))};
  if (piece.key.empty()) malformed(text_, "has braces without a key.");
  if (colon == inside.size()) return piece;
  const auto format = inside.substr(colon + 1);
  std::size_t at = 0;
  if (at < format.size() && format[at] == '0') piece.pad_with_zeros = true, ++at;
  at = read_digits(format, at, piece.width);
  if (at < format.size() && format[at] == '.') {
    const auto digits = at + 1;
    at = read_digits(format, digits, piece.precision);
    if (at == digits) malformed(text_, "has a format with '.' but no digits after it.");
  }
  if (at < format.size()) piece.type = format[at++];
  const bool known =
      piece.type == 0 || std::string_view("dfeg").find(piece.type) != std::string_view::npos;
  if (at != format.size() || !known || piece.width < 0 || piece.width > 64 ||
      piece.precision > 32) {
    malformed(text_, "has a format that is not [0][width][.precision][d, f, e or g].");
  }
  if (piece.type == 'd' && !is_counter(piece.key)) {
    malformed(text_, "asks for format d, which is for epoch and step; metrics are f, e or g.");
  }
  if (piece.precision >= 0 && (piece.type == 'd' || (piece.type == 0 && is_counter(piece.key)))) {
    malformed(text_, "asks for digits after the point of an integer.");
  }
  return piece;
}

std::vector<std::string> CheckpointNameTemplate::metrics() const {
  std::vector<std::string> keys;
  for (const auto& piece : pieces_) {
    if (!piece.key.empty() && !is_counter(piece.key)) keys.push_back(piece.key);
  }
  return keys;
}

std::string CheckpointNameTemplate::format(std::int64_t epoch,
                                           std::int64_t step,
                                           const Lookup& lookup) const {
  std::string name;
  for (const auto& piece : pieces_) {
    if (piece.key.empty()) {
      name += piece.literal;
      continue;
    }
    const bool counter = is_counter(piece.key);
    const auto value = counter
                           ? std::optional(static_cast<double>(piece.key == "epoch" ? epoch : step))
                           : lookup(piece.key);
    if (!value) {
      fail<ConfigError>(kWhere,
                        "filename '",
                        text_,
                        "' needs the metric '",
                        piece.key,
                        "', which was not logged. Log it, or leave it out of the filename.");
    }
    if (insert_ == Insert::kKeyAndValue) name += escape_metric_name(piece.key) + "=";
    format_value(piece, *value, name);
  }
  return name;
}

void CheckpointNameTemplate::format_value(const Piece& piece, double value, std::string& out) {
  std::array<char, 512> buffer;
  const char type = piece.type != 0         ? piece.type
                    : is_counter(piece.key) ? 'd'
                    : piece.precision >= 0  ? 'g'
                                            : 0;
  std::string text;
  if (type == 'd') {
    text = std::to_string(static_cast<std::int64_t>(value));
  } else if (type == 0) {
    text = shortest(value);
  } else {
    const char format[] = {'%', '.', '*', type, '\0'};
    const int precision = piece.precision >= 0 ? piece.precision : 6;
    std::snprintf(buffer.data(), buffer.size(), format, precision, value);
    text = buffer.data();
  }
  const bool zeros = piece.pad_with_zeros && std::isfinite(value);
  const auto width = static_cast<std::size_t>(piece.width);
  if (text.size() < width) {
    // Zeros go between the sign and the digits.
    const std::size_t at = zeros && text.front() == '-' ? 1 : 0;
    text.insert(at, width - text.size(), zeros ? '0' : '_');
  }
  out += text;
}

std::string escape_metric_name(std::string_view name) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  std::string escaped;
  for (const char c : name) {
    if (c == '/' || c == '%' || c == '=' || c == '-' || is_control(c)) {
      const auto byte = static_cast<unsigned char>(c);
      escaped += {'%', kHex[byte / 16], kHex[byte % 16]};
    } else {
      escaped += c;
    }
  }
  return escaped;
}

std::string unescape_metric_name(std::string_view escaped) {
  std::string name;
  for (std::size_t at = 0; at < escaped.size(); ++at) {
    unsigned byte = 0;
    const char* digits = escaped.data() + at + 1;
    if (escaped[at] == '%' && at + 2 < escaped.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      name += static_cast<char>(byte);
      at += 2;
    } else {
      name += escaped[at];
    }
  }
  return name;
}

std::map<std::string, double> parse_checkpoint_name(std::string_view name) {
  if (const auto version = name.rfind("-v");
      version != std::string_view::npos && version + 2 < name.size() &&
      name.find_first_not_of("0123456789", version + 2) == std::string_view::npos) {
    name = name.substr(0, version);
  }
  std::map<std::string, double> values;
  std::size_t start = 0;
  for (auto equals = name.find('='); equals != std::string_view::npos;) {
    // A key has no '-', so it starts behind the last one before its '='.
    const auto dash = name.rfind('-', equals);
    const auto key_start = dash == std::string_view::npos || dash < start ? start : dash + 1;
    const auto next = name.find('=', equals + 1);
    const auto next_dash = next == std::string_view::npos ? name.size() : name.rfind('-', next);
    const auto end = std::max(std::min(next_dash, name.size()), equals + 1);
    auto text = name.substr(equals + 1, end - equals - 1);
    text.remove_prefix(std::min(text.find_first_not_of('_'), text.size()));
    double value = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && stop == text.data() + text.size()) {
      values[unescape_metric_name(name.substr(key_start, equals - key_start))] = value;
    }
    start = end;
    equals = next;
  }
  return values;
}

}  // namespace fulmen
