#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "fulmen/core/checkpoint/checkpoint.h"
#include "fulmen/core/distributed/strategy.h"
#include "fulmen/core/metrics/metric_store.h"
#include "fulmen/core/module/hook_point.h"
#include "fulmen/core/module/profiler.h"
#include "fulmen/core/optim/grad_scaler.h"
#include "fulmen/core/optim/precision.h"
#include "fulmen/core/support/accelerator.h"
#include "fulmen/trainer/trainer.h"
#include "loop_state.h"

namespace fulmen::detail {

enum class Answer { kNo, kYes };

class FitLoop;
class LimitedSource;

/// All that a Trainer holds between and during runs: what the loops work on, and what callbacks and
/// modules see. The loops are in loops/, the state of a run in loop_state.h, checkpoints in
/// run_state.h.
class Session final : public TrainerContext, public ManualOptimization {
 public:
  explicit Session(TrainerOptions options);
  ~Session();

  FitResult fit(std::shared_ptr<ModuleBase> module, RunSources sources, const FitOptions& options);
  EvalResults evaluate(Stage stage,
                       std::shared_ptr<ModuleBase> module,
                       RunSources sources,
                       const EvalOptions& options);
  std::vector<AnyBatch> predict(std::shared_ptr<ModuleBase> module,
                                RunSources sources,
                                const EvalOptions& options);
  void request_stop(std::string reason);
  /// Why the run has to stop at this boundary of a batch; null: it goes on. Cheap enough for every
  /// batch. On several ranks only what all have agreed on counts.
  const char* interruption();
  /// Whether a signal or request to stop has reached this rank.
  bool stop_wanted();
  /// All ranks stop: one of them was asked to.
  void stop_jointly();
  /// This rank's part in what all decide at the end of a window, but for its loss.
  WindowVote wishes();
  /// What they have decided: to stop, to end the fit, to validate.
  void obey(const WindowVerdict& verdict);
  /// Collective: the same between windows, without one.
  void agree_on_wishes();
  /// Collective: whether it is kYes on any rank.
  bool any_rank(Answer mine) const;
  /// The signal that a rank got, the one of the greatest number; 0: none did. Collective.
  int signal_of_any_rank() const;
  /// Of the run; of one process before the first has begun.
  const Topology& topology() const { return topology_; }
  bool several_ranks() const { return topology_.world_size > 1; }
  /// Runs `action`; on several ranks what it throws on one of them is thrown on all.
  template <class Action>
  void jointly(std::string_view where, const Action& action) const {
    if (!several_ranks()) return action();
    std::string problem;
    try {
      action();
    } catch (const std::exception& error) {
      problem = error.what();
    }
    agree_or_fail(where, problem, strategy_->mesh().world()->all());
  }

  // TrainerContext
  Stage stage() const override { return stage_; }
  bool sanity_checking() const override { return sanity_checking_; }
  const Progress& progress() const override { return state.progress; }
  const RunPlan& plan() const override { return plan_; }
  std::optional<double> metric(std::string_view name) const override {
    return metrics.metric(name);
  }
  std::map<std::string, double> callback_metrics() const override {
    return metrics.callback_metrics();
  }
  std::map<std::string, double> progress_bar_metrics() const override {
    return metrics.progress_bar_metrics();
  }
  std::map<std::string, double> logged_metrics() const override { return metrics.logged_metrics(); }
  void log_value(std::string_view name,
                 const at::Tensor& value,
                 const LogOptions& options) override;
  void log_value(std::string_view name, double value, const LogOptions& options) override;
  void stop_training(std::string_view reason) override;
  void save_checkpoint(const std::filesystem::path& directory, CheckpointScope scope) override;
  void set_accumulate_grad_batches(std::int64_t micro_batches) override;
  std::optional<std::int64_t> estimated_stepping_batches() override;
  std::span<const OptimizerConfig> optimizer_configs() const override { return optimizers; }
  std::span<const std::shared_ptr<Logger>> loggers() const override { return loggers_; }
  Strategy& strategy() override { return *strategy_; }
  Log& log() override { return log_; }
  std::filesystem::path restored_from() const override { return restored_from_; }

  // ManualOptimization
  void manual_backward(const at::Tensor& loss) override;
  void manual_step(std::size_t index, const Optimizer::Closure& closure) override;
  void automatic_step(Optimizer& optimizer, const Optimizer::Closure& closure) override;
  at::Tensor clip_gradients(Optimizer& optimizer,
                            std::optional<double> value,
                            ClipAlgorithm algorithm) override;

  void set_hook(HookPoint point) {
    metrics.set_hook(point);
    if (options.profiler) options.profiler->enter(point);
  }
  /// Calls a hook of every callback.
  template <class Hook, class... Args>
  void call_callbacks(HookPoint point, Hook member, Args&&... args) {
    set_hook(point);
    for (auto& callback : callbacks_) ((*callback).*member)(*this, *module, args...);
  }
  template <class Predicate, class Hook, class... Args>
  void call_callbacks_if(HookPoint point, Predicate predicate, Hook member, Args&&... args) {
    set_hook(point);
    for (auto& callback : callbacks_) {
      if (predicate(callback->kind())) ((*callback).*member)(*this, *module, args...);
    }
  }
  /// A hook at whose end checkpoints may be written: checkpoint callbacks come after the module,
  /// whose part is `module_part`.
  template <class Hook, class ModulePart, class... Args>
  void call_checkpoints_last(HookPoint point,
                             Hook member,
                             const ModulePart& module_part,
                             Args&&... args) {
    const auto ordinary = [](CallbackKind kind) { return kind != CallbackKind::kCheckpoint; };
    const auto checkpoints = [](CallbackKind kind) { return kind == CallbackKind::kCheckpoint; };
    call_callbacks_if(point, ordinary, member, args...);
    module_part(hook(point));
    call_callbacks_if(point, checkpoints, member, args...);
  }
  /// The same hook of callbacks, then of the module.
  template <class CallbackHook, class ModuleHook, class... Args>
  void call(HookPoint point, CallbackHook callback_hook, ModuleHook module_hook, Args&... args) {
    call_callbacks(point, callback_hook, args...);
    ((*module).*module_hook)(args...);
  }
  ModuleBase& hook(HookPoint point) {
    set_hook(point);
    return *module;
  }

  /// Moves a batch where the strategy's device is, with the hooks for it, in the precision's dtype.
  void transfer(BatchView batch, std::int64_t dataloader_idx);
  template <class Owner>
  void move_batch(Owner& owner, BatchView batch, c10::Device device, std::int64_t dataloader_idx);
  /// Runs `body` (one forward or forward and backward) in the precision's context.
  template <class Body>
  auto in_precision(Body body) {
    AutocastGuard autocast(strategy_->root_device().type(), options.precision);
    return body();
  }
  /// Reads metrics from the device and sends them to every logger.
  void send_to_loggers(std::map<std::string, double> values, std::int64_t step);
  /// The step axis of loggers while training.
  std::int64_t logged_step() const {
    return std::max<std::int64_t>(state.progress.global_step - 1, 0);
  }
  /// The module's parameters, each tensor once under its first name. Fixed from
  /// configure_optimizers on.
  const std::vector<std::pair<std::string, at::Tensor>>& distinct_parameters() const {
    return parameters_;
  }
  std::span<const at::Tensor> parameter_tensors() const { return parameter_tensors_; }
  /// Where eval loaders of a stage come from: the call, the data module, or the module.
  std::vector<std::shared_ptr<BatchSource>> eval_sources(Stage stage);
  std::shared_ptr<BatchSource> train_source();
  BatchLimit train_limit() const;
  /// A limit, or that of fast_dev_run in its place.
  BatchLimit dev_run_or(const BatchLimit& limit) const;
  /// Seed, and the share of this rank. Throws DataError for a source that cannot be shared out.
  void prepare_source(BatchSource& source, std::string_view what) const;
  /// Collective where the source is shared out: throws DataError on all ranks if they do not read
  /// shares of the same samples in the same order. After its start.
  void check_same_order(const LimitedSource& source, std::string_view what) const;
  /// Ends an evaluation or epoch: its metrics over all ranks.
  void end_metrics_epoch();
  /// A metric as rank 0 has it, so that what depends on it is the same on all. Collective.
  std::optional<double> metric_of_rank_zero(const std::string& name) const;
  /// After the *_epoch_end hooks: what they logged counts, over all ranks.
  void commit_epoch_hooks();
  /// Of loaders, and what random streams of ranks are made from: the same on all.
  std::uint64_t loader_seed() const { return loader_seed_; }
  bool evaluates_in_inference_mode() const {
    return options.inference_mode && stage_ != Stage::kFit;
  }

  /// Names the checkpoint that "last", "best" or a path means. Throws CheckpointError if there is
  /// none.
  /// Empty with MissingCheckpoint::kStartAnew.
  std::filesystem::path find_checkpoint(const std::string& text, MissingCheckpoint missing) const;

  // The loops' working set. Public within the trainer only: this header is private to its folder.
  TrainerOptions options;
  std::shared_ptr<ModuleBase> module;
  RunSources sources;
  std::vector<OptimizerConfig> optimizers;
  MetricStore metrics;
  LoopState state;
  std::shared_ptr<GradScaler> scaler;  ///< 16-mixed only.
  std::shared_ptr<Accelerator> accelerator;
  std::optional<CheckpointContents>
      restoring;  ///< Position that has to be put back when the loop starts.
  std::optional<CheckpointContents> finished_position;  ///< Of the last fit that ended by itself.
  std::shared_ptr<ModuleBase> finished_module;          ///< What it trained.
  std::unique_ptr<FitLoop> fit_loop;                    ///< While fit runs.
  RunPlan plan_;
  bool sanity_checking_ = false;
  std::vector<std::shared_ptr<Callback>> callbacks_;  ///< In the order of calls.
  std::vector<std::shared_ptr<Logger>> loggers_;      ///< Of rank 0; others have none.

 private:
  template <class Body>
  void run(Stage stage,
           std::shared_ptr<ModuleBase> module,
           RunSources sources,
           const FitOptions& from,
           const Body& body);
  void connect(Stage stage);
  void connect_callbacks();
  void make_default_callbacks();
  void make_default_loggers();
  void prepare(Stage stage);
  void make_plan(Stage stage);
  void prepare_data();
  void configure_sharded_model();
  std::uint64_t joint_seed() const;
  void separate_random_streams() const;
  void connect_optimizers();
  void check_optimizers() const;
  void interrupt(const char* reason);
  std::filesystem::path look_for_checkpoint(const std::string& text,
                                            MissingCheckpoint missing) const;
  void end(RunStatus status);
  void abandon(const std::exception& error) noexcept;
  void log_failure(const char* what, const char* text) noexcept;
  void print_results(Stage stage, const EvalResults& results);
  /// Runs what must not hide the first error, and logs what it throws.
  template <class Action>
  void attempt(const char* what, const Action& action) noexcept;

  Stage stage_ = Stage::kFit;
  std::shared_ptr<Strategy> strategy_;
  Log log_;
  std::vector<std::shared_ptr<Callback>> own_callbacks_;  ///< Without those that the module brings.
  std::shared_ptr<Callback> default_checkpoint_;          ///< Among them, if the user gave none.
  std::shared_ptr<Callback> default_bar_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
  std::vector<at::Tensor> parameter_tensors_;  ///< Of parameters_.
  std::shared_ptr<BatchSource> early_source_;  ///< Asked for before the loop needed it.
  std::filesystem::path restored_from_;
  std::string interruption_text_;
  Topology topology_;
  std::string wanted_stop_;    ///< Why this rank would like to stop.
  std::string wanted_finish_;  ///< What stop_training() was called with, until all know.
  std::vector<std::shared_ptr<Logger>> own_loggers_;
  bool failed_ = false;  ///< The run ends by an error: other ranks are not there any more.
  bool running_ = false;
  bool set_up_ = false;  ///< setup hooks ran, so teardown hooks have to.
  std::uint64_t loader_seed_ = 0;

  std::atomic<bool> stop_requested_ = false;
  std::mutex stop_mutex_;
  std::string stop_text_;
};

}  // namespace fulmen::detail
