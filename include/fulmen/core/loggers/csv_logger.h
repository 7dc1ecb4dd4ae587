#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulmen/core/loggers/logger.h"

namespace fulmen {

struct CSVLoggerOptions {
  std::filesystem::path save_dir = ".";
  std::string name = "fulmen_logs";  ///< Folder in save_dir; empty: none.
  /// Folder in that. Unset: "version_k", k one more than the largest there is; processes that start
  /// at the same time get different ones.
  std::optional<std::string> version = {};
  std::int64_t flush_every_n = 100;  ///< Rows that are held back at most.
};

/// Writes metrics to <save_dir>/<name>/<version>/metrics.csv and hyperparameters to hparams.json
/// beside it.
///
/// One row per log_metrics() call. Columns: step, epoch if it was ever logged, then all names in
/// order; an empty cell is a value that was not logged in that row. A new name rewrites the file
/// with one more column. Doubles have the fewest digits that give them back; nan and inf are
/// written so. A folder that has a metrics.csv is continued: a row cut off by a crash is dropped,
/// all others stay, so the steps that a resumed run repeats stand there twice, the later row being
/// the valid one. Rows are in the file after flush_every_n of them, after save(), and after each
/// checkpoint. Nothing is made on disk before the first use. Every function that writes throws
/// Error with the system's reason.
class CSVLogger : public Logger {
 public:
  /// Throws ConfigError for options out of range.
  static std::shared_ptr<CSVLogger> make(CSVLoggerOptions options = {});
  ~CSVLogger() override;

  std::string name() const override { return options_.name; }
  /// Chooses and makes the folder if that has not happened yet; so does log_dir().
  std::string version() const override;
  std::filesystem::path log_dir() const override;
  std::filesystem::path metrics_path() const { return log_dir() / "metrics.csv"; }

  void log_metrics(const std::map<std::string, double>& metrics, std::int64_t step) override;
  void log_hyperparameters(const boost::json::object& hyperparameters) override;
  void save() override;
  void after_save_checkpoint(const std::filesystem::path& checkpoint) override;

 private:
  struct Cell {
    std::size_t column;
    double value;
  };
  struct Row {
    std::int64_t step;
    std::size_t end;  ///< Where its cells end in cells_.
  };

  explicit CSVLogger(CSVLoggerOptions options) : options_(std::move(options)) {}
  void open();
  void widen();
  std::vector<std::size_t> file_order() const;
  std::string buffered_text(const std::vector<std::size_t>& order) const;

  CSVLoggerOptions options_;
  mutable std::filesystem::path log_dir_;
  std::map<std::string, std::size_t, std::less<>> columns_;  ///< By name; numbered as they came.
  std::vector<std::string> header_;                          ///< Names in the file, without step.
  std::vector<Cell> cells_;
  std::vector<Row> rows_;
  bool opened_ = false;
};

}  // namespace fulmen
