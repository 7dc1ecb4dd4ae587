#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "../session.h"
#include "limited_source.h"

namespace fulmen::detail {

/// validate and test, and the validations of a fit: every loader in turn, all hooks, in eval mode
/// without gradients.
class EvaluationLoop {
 public:
  EvaluationLoop(Session& session, std::vector<std::shared_ptr<BatchSource>> sources, Stage stage);

  /// For the sanity check: at most this many batches of each loader.
  void limit_batches(std::int64_t batches) { few_ = batches; }
  /// Called when all batches are done, before on_*_end, where checkpoints are written.
  void on_complete(std::function<void()> action) { on_complete_ = std::move(action); }
  /// Stops early, without end hooks, if the run is interrupted.
  void run();

 private:
  struct Hooks;
  const Hooks& hooks() const;
  MetricPhase phase() const;
  BatchLimit limit() const;
  BatchLimit few_batches(const LimitedSource& whole) const;
  std::string loader_name(std::size_t loader) const;
  std::vector<LimitedSource> limited_sources();
  bool run_batches(std::vector<LimitedSource>& loaders);
  void run_batch(BatchView batch, std::int64_t batch_idx, std::int64_t dataloader_idx);
  void finish();

  Session& session_;
  std::vector<std::shared_ptr<BatchSource>> sources_;
  Stage stage_;
  std::optional<std::int64_t> few_;
  std::function<void()> on_complete_;
};

/// The mode of every submodule, given back when it goes out of scope.
class ModeGuard {
 public:
  explicit ModeGuard(torch::nn::Module& module);
  ~ModeGuard();
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> children_;
  torch::nn::Module& root_;
  bool root_training_;
};

}  // namespace fulmen::detail
