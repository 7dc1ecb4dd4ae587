#pragma once

#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

namespace fulmen {

enum class LogLevel { kInfo, kWarning, kError };

/// Receives finished lines without a newline. Called from the thread that runs the trainer.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void write(LogLevel level, std::string_view line) = 0;
};

/// Writes to standard error, warnings and errors with a "warning: " or "error: " prefix.
std::shared_ptr<LogSink> stderr_sink();

/// What the framework says to its user. Owned by a Trainer, never global; not thread-safe.
class Log {
 public:
  /// Null: stderr_sink().
  explicit Log(std::shared_ptr<LogSink> sink = {});

  template <class... Parts>
  void info(const Parts&... parts) {
    write(LogLevel::kInfo, join(parts...));
  }
  template <class... Parts>
  void warning(const Parts&... parts) {
    write(LogLevel::kWarning, join(parts...));
  }
  template <class... Parts>
  void info_once(const Parts&... parts) {
    if (auto line = join(parts...); seen_.insert(line).second) write(LogLevel::kInfo, line);
  }
  /// The same text is written once in the life of this object.
  template <class... Parts>
  void warning_once(const Parts&... parts) {
    if (auto line = join(parts...); seen_.insert(line).second) write(LogLevel::kWarning, line);
  }
  template <class... Parts>
  void error(const Parts&... parts) {
    write(LogLevel::kError, join(parts...));
  }

 private:
  template <class... Parts>
  static std::string join(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    return text.str();
  }
  void write(LogLevel level, std::string_view line);

  std::shared_ptr<LogSink> sink_;
  std::set<std::string> seen_;
};

}  // namespace fulmen
