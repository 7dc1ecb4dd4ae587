#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace fulmen {

/// How a run ended.
enum class RunStatus { kRunning, kFinished, kInterrupted, kFailed };

/// Receives metrics. Called on rank 0 only, from the trainer's thread.
class Logger {
 public:
  virtual ~Logger() = default;
  virtual std::string name() const = 0;
  virtual std::string version() const = 0;
  /// Where this logger writes; empty if nowhere on disk. Made when the run starts, not before.
  virtual std::filesystem::path log_dir() const { return {}; }
  virtual void log_metrics(const std::map<std::string, double>& metrics, std::int64_t step) = 0;
  virtual void log_hyperparameters(const boost::json::object& /*hyperparameters*/) {}
  /// Writes out what is buffered. Throws Error if it cannot.
  virtual void save() {}
  /// End of a run. Throws Error if what is buffered cannot be written.
  virtual void finalize(RunStatus /*status*/) { save(); }
  virtual void after_save_checkpoint(const std::filesystem::path& /*checkpoint*/) {}
};

}  // namespace fulmen
