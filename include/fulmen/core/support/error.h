#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fulmen {

/// Base of every exception that Fulmen throws. LibTorch's own c10::Error passes through unchanged.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A call, an option or a module that cannot work as given. Thrown before anything is changed.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A dataset, loader or batch that cannot be used.
class DataError : public Error {
 public:
  using Error::Error;
};

/// A checkpoint that is missing, damaged, does not fit, or cannot be written.
class CheckpointError : public Error {
 public:
  using Error::Error;
};

/// Training went wrong: a loss that is not finite, or that has no graph.
class TrainingError : public Error {
 public:
  using Error::Error;
};

/// validate, test or predict was stopped before its end by a signal or request_stop().
class Interrupted : public Error {
 public:
  using Error::Error;
};

/// Ranks that did not come, disagree, or failed.
class DistributedError : public Error {
 public:
  using Error::Error;
};

/// Throws E with the text "<where>: <parts...>". Say what was given, what is allowed, and the
/// remedy.
template <class E, class... Parts>
[[noreturn]] void fail(std::string_view where, const Parts&... parts) {
  std::ostringstream text;
  text << where << ": ";
  (text << ... << parts);
  throw E(text.str());
}

}  // namespace fulmen
