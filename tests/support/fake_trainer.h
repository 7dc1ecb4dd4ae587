#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fulmen/core/distributed/strategy.h"
#include "fulmen/core/loggers/logger.h"
#include "fulmen/core/module/callback.h"
#include "fulmen/core/module/trainer_context.h"
#include "fulmen/core/optim/optimizer_config.h"
#include "fulmen/core/support/log.h"

namespace fulmen {

/// Keeps what was said.
class CapturingSink : public LogSink {
 public:
  void write(LogLevel level, std::string_view line) override { lines.emplace_back(level, line); }
  /// Lines of a level that contain `part`.
  int count(LogLevel level, std::string_view part) const;
  std::string all() const;

  std::vector<std::pair<LogLevel, std::string>> lines;
};

/// Keeps what was logged.
class CapturingLogger : public Logger {
 public:
  struct Record {
    std::map<std::string, double> metrics;
    std::int64_t step;
  };

  std::string name() const override { return "capturing"; }
  std::string version() const override { return "0"; }
  std::filesystem::path log_dir() const override { return directory; }
  void log_metrics(const std::map<std::string, double>& metrics, std::int64_t step) override {
    records.push_back({metrics, step});
  }
  void after_save_checkpoint(const std::filesystem::path& checkpoint) override {
    checkpoints.push_back(checkpoint);
  }

  std::filesystem::path directory;
  std::vector<Record> records;
  std::vector<std::filesystem::path> checkpoints;
};

/// One process, one device, nothing to do.
class FakeStrategy : public Strategy {
 public:
  std::string key() const override { return "fake"; }
  void setup_environment(const EnvironmentRequest& /*request*/) override {}
  const DeviceMesh& mesh() const override { return one; }
  Topology topology() const override { return place; }
  c10::Device root_device() const override { return c10::Device(c10::kCPU); }
  void setup(ModuleBase&, Stage) override {}
  WindowVerdict finish_gradients(std::span<const at::Tensor>, const WindowVote& vote) override {
    return verdict_of(vote);
  }
  void reduce_gradients(std::span<const at::Tensor>) override {}
  void synchronize_buffers(ModuleBase&) override {}

  DeviceMesh one{{{.name = "data"}}, World::single()};
  Topology place;
};

/// A TrainerContext whose every answer a test sets, and which keeps what it was asked to do.
class FakeTrainer : public TrainerContext {
 public:
  FakeTrainer();
  ~FakeTrainer();

  /// A LightningModule with Linear(2, 3) as "layer".
  ModuleBase& module() { return *module_; }

  Stage stage() const override { return current_stage; }
  bool sanity_checking() const override { return in_sanity_check; }
  const Progress& progress() const override { return counters; }
  const RunPlan& plan() const override { return run_plan; }
  std::optional<double> metric(std::string_view name) const override;
  std::map<std::string, double> callback_metrics() const override { return metrics; }
  std::map<std::string, double> progress_bar_metrics() const override;
  std::map<std::string, double> logged_metrics() const override { return metrics; }
  void log_value(std::string_view name,
                 const at::Tensor& value,
                 const LogOptions& options) override;
  void log_value(std::string_view name, double value, const LogOptions& options) override;
  void stop_training(std::string_view reason) override { stop_reasons.emplace_back(reason); }
  /// Records; writes if `on_save` does.
  void save_checkpoint(const std::filesystem::path& directory, CheckpointScope scope) override;
  std::optional<std::int64_t> estimated_stepping_batches() override { return stepping_batches; }
  std::optional<std::int64_t> stepping_batches;
  void set_accumulate_grad_batches(std::int64_t micro_batches) override {
    accumulate.push_back(micro_batches);
  }
  std::span<const OptimizerConfig> optimizer_configs() const override { return optimizers; }
  std::span<const std::shared_ptr<Logger>> loggers() const override { return logger_list; }
  Strategy& strategy() override { return fake_strategy; }
  Log& log() override { return log_; }
  std::filesystem::path restored_from() const override { return restored; }

  Stage current_stage = Stage::kFit;
  bool in_sanity_check = false;
  Progress counters;
  RunPlan run_plan;
  std::map<std::string, double> metrics;
  mutable int bar_reads = 0;  ///< Calls of progress_bar_metrics().
  std::vector<std::string> stop_reasons;
  struct Saved {
    std::filesystem::path directory;
    CheckpointScope scope;
  };
  std::vector<Saved> saved;
  std::function<void(const std::filesystem::path&, CheckpointScope)> on_save;
  std::vector<std::int64_t> accumulate;
  std::vector<OptimizerConfig> optimizers;
  std::vector<std::shared_ptr<Logger>> logger_list;
  FakeStrategy fake_strategy;
  std::filesystem::path restored;
  std::shared_ptr<CapturingSink> sink = std::make_shared<CapturingSink>();

 private:
  Log log_{sink};
  std::shared_ptr<ModuleBase> module_;
};

/// A directory of its own, removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A clock that stands still until it is moved.
struct FakeClock {
  std::shared_ptr<std::chrono::steady_clock::time_point> time =
      std::make_shared<std::chrono::steady_clock::time_point>(std::chrono::seconds(1000));
  std::chrono::steady_clock::time_point operator()() const { return *time; }
  void advance(std::chrono::duration<double> by) const {
    *time += std::chrono::duration_cast<std::chrono::steady_clock::duration>(by);
  }
};

}  // namespace fulmen
