#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fulmen {

/// Names of checkpoints from a template such as "{epoch}-{step}-{val_loss:.2f}".
///
/// In braces stands `epoch`, `step` or a metric, then optionally a format as in Python:
/// [0][width][.precision] and one of d (epoch and step only), f, e, g. Without a format a value is
/// written with the fewest digits that give it back; short values are filled up with _. With keys
/// inserted each is preceded by "key=", the key as escape_metric_name writes it.
class CheckpointNameTemplate {
 public:
  enum class Insert { kKeyAndValue, kValueOnly };

  /// Value of a metric; empty if there is none.
  using Lookup = std::function<std::optional<double>(std::string_view)>;

  /// Throws ConfigError if the template is malformed or could name something outside its directory.
  explicit CheckpointNameTemplate(std::string_view text, Insert insert = Insert::kKeyAndValue);

  /// The keys besides epoch and step.
  std::vector<std::string> metrics() const;
  /// Throws ConfigError for a metric that `lookup` does not know: it is never written as 0.
  std::string format(std::int64_t epoch, std::int64_t step, const Lookup& lookup) const;

 private:
  struct Piece {
    std::string literal = {};  ///< Used if `key` is empty.
    std::string key = {};
    bool pad_with_zeros = false;
    int width = 0;
    int precision = -1;
    char type = 0;
  };

  Piece parse_key(std::string_view inside) const;
  static void format_value(const Piece& piece, double value, std::string& out);

  std::string text_;
  Insert insert_;
  std::vector<Piece> pieces_;
};

/// Replaces '/', '%', '=', '-' and control characters by %XX, so that a name is one path component
/// and can be split again: "val/loss" is "val%2Floss".
std::string escape_metric_name(std::string_view name);
std::string unescape_metric_name(std::string_view escaped);

/// The values in a name that was made with keys inserted and joined by '-':
/// "epoch=3-val%2Floss=0.25-v1" gives {epoch: 3, val/loss: 0.25}. What is no key=number is left
/// out.
std::map<std::string, double> parse_checkpoint_name(std::string_view name);

}  // namespace fulmen
