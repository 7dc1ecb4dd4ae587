#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fulmen/callbacks/checkpoint_name.h"
#include "fulmen/callbacks/monitor_mode.h"
#include "fulmen/core/module/callback.h"

namespace fulmen {

enum class SaveLast {
  kNo,       ///< The pointer `last` names the newest checkpoint that was kept for its own sake.
  kPointer,  ///< Every trigger saves, also what is not among the best, and `last` stays.
};

struct ModelCheckpointOptions {
  /// Default: <log_dir of the first logger>/checkpoints, else <default_root_dir>/checkpoints.
  std::filesystem::path dirpath = {};
  /// See CheckpointNameTemplate. If the name exists, "-v1", "-v2", ... follows it.
  std::string filename = "{epoch}-{step}";
  bool auto_insert_metric_name = true;  ///< "epoch=3" in place of "3".
  std::string monitor = {};  ///< Metric that decides which is best; empty: the newest is best.
  MonitorMode mode = MonitorMode::kMin;
  std::int64_t save_top_k = 1;  ///< How many of the best are kept; -1: all, 0: none.
  SaveLast save_last = SaveLast::kNo;
  bool save_weights_only = false;
  bool save_on_exception = false;  ///< "exception-epoch=E-step=S", complete, and `last` names it.
  bool save_on_interrupt = true;   ///< "interrupted-epoch=E-step=S", complete, and `last` names it.
  /// At most one of these three; none: each epoch. Steps are optimizer steps.
  std::optional<std::int64_t> every_n_train_steps = {};
  std::optional<std::int64_t> every_n_epochs = {};
  std::optional<std::chrono::duration<double>> train_time_interval = {};
  /// Epochs save at the end of training, or of validation. Unset: of validation, unless each epoch
  /// ends with its only one (its values are known at the epoch's end then) or there is none.
  std::optional<bool> save_on_train_epoch_end = {};
  bool enable_version_counter = true;  ///< False: a name that exists is an error.
  bool verbose = false;
  std::function<std::chrono::steady_clock::time_point()> clock = {};  ///< Unset: the steady clock.
};

/// Saves checkpoints during a fit and keeps the best. See docs/checkpoints.md.
///
/// A save is written, then the pointers `last` and `best` in `dirpath` are moved, then what is not
/// kept any more is removed: only what this callback saved, in this run or the one it resumes, and
/// never what the run was restored from (the next run removes that). A metric that is NaN is worse
/// than any number. A step or time trigger whose metric is not known yet, or that falls on the last
/// batch of an epoch with validation, waits for it. Metrics must be equal on all ranks.
class ModelCheckpoint : public Callback {
 public:
  /// Throws ConfigError for options that contradict each other or are out of range.
  static std::shared_ptr<ModelCheckpoint> make(ModelCheckpointOptions options = {});

  const ModelCheckpointOptions& options() const { return options_; }
  /// Known from setup on.
  const std::filesystem::path& dirpath() const { return directory_; }
  /// Empty if there is none.
  std::filesystem::path best_model_path() const;
  std::optional<double> best_model_score() const;
  std::filesystem::path last_model_path() const;
  /// The checkpoints that are kept with their scores; empty without a monitor.
  std::map<std::filesystem::path, double> best_k_models() const;
  /// The worst of them: what a new one has to beat.
  std::filesystem::path kth_best_model_path() const;
  std::optional<double> kth_value() const;
  std::optional<double> current_score() const { return state_.current_score; }

  CallbackKind kind() const override { return CallbackKind::kCheckpoint; }
  std::string state_key() const override;
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;
  bool saves_on_exception() const override { return options_.save_on_exception; }

  void reset() override;
  void setup(Context& context, Module& module, Stage stage) override;
  void on_train_start(Context& context, Module& module) override;
  void on_train_batch_end(Context& context,
                          Module& module,
                          const StepOutput& outputs,
                          BatchView batch,
                          std::int64_t batch_idx) override;
  void on_validation_end(Context& context, Module& module) override;
  void on_train_epoch_end(Context& context, Module& module) override;
  void on_train_end(Context& context, Module& module) override;
  void on_exception(Context& context, Module& module, const std::exception& error) override;
  void on_interrupt(Context& context, Module& module, std::string_view reason) override;

 private:
  struct Kept {
    std::string name;
    double score = 0;
    std::int64_t order = 0;  ///< Counts saves.
  };
  /// What a checkpoint holds of this object. Names are relative to the directory.
  struct State {
    std::vector<Kept> kept = {};
    std::string last = {};
    std::vector<std::string> to_remove = {};
    std::optional<double> current_score = {};
    std::int64_t order = 0;
    std::int64_t saved_step = -1;
    std::int64_t saved_batches = -1;
    std::int64_t saved_epoch = -1;
    std::int64_t trigger_step = 0;
    bool postponed = false;
  };

  explicit ModelCheckpoint(ModelCheckpointOptions options);
  std::chrono::steady_clock::time_point now() const;
  void adopt_loaded_state(Context& context);
  void clean_up_after_resume(Context& context);

  bool time_is_due(Context& context);
  bool must_wait(Context& context, std::int64_t batch_idx) const;
  bool metrics_known(Context& context) const;
  void refuse_unknown_metrics(Context& context) const;
  void save_if_kept(Context& context);
  void save_forced(Context& context, const CheckpointNameTemplate& names);
  /// Puts `next` in force and the checkpoint on disk, or neither.
  void commit(Context& context, State next, CheckpointScope scope);
  std::string free_name(Context& context, const std::string& wanted);
  void write_pointers(Context& context, const std::string& best_before);
  void remove_dropped(Context& context);

  bool is_better(const Kept& candidate, const Kept& than) const;
  const Kept* best() const;
  const Kept* worst() const;
  bool enters(const Kept& candidate) const;

  ModelCheckpointOptions options_;
  CheckpointNameTemplate names_;
  std::filesystem::path directory_;
  State state_;
  std::filesystem::path loaded_directory_;  ///< Of a loaded state that is not adopted yet.
  std::filesystem::path foreign_best_;      ///< Best of a run that saved elsewhere.
  bool validated_ = false;
  bool warned_of_clash_ = false;
  std::int64_t saves_ = 0;     ///< In this run.
  std::int64_t declined_ = 0;  ///< Triggers of this run that found nothing better.
  std::int64_t batches_at_start_ = 0;
  std::int64_t step_at_last_batch_ = 0;
  std::chrono::steady_clock::time_point last_save_time_ = {};
};

}  // namespace fulmen
