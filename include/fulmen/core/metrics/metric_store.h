#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fulmen/core/data/batch.h"
#include "fulmen/core/metrics/log_options.h"
#include "fulmen/core/module/hook_point.h"
#include "fulmen/core/support/state_dict.h"

namespace fulmen {

namespace detail {
class MetricTable;
struct MetricValue;
}  // namespace detail

/// Each phase collects metrics of its own. Those of the sanity check vanish with end_phase().
enum class MetricPhase : std::uint8_t { kTrain, kSanityCheck, kValidate, kTest };
/// "train", "sanity_check", "validate", "test".
std::string_view to_string(MetricPhase phase);

/// What becomes of tensors on the CPU: read when logged, or kept until somebody asks, as those of
/// other devices are. The second is for tests.
enum class CpuTensors : std::uint8_t { kReadAtOnce, kKeep };

/// What log() records. A value is a copy from the moment of the call. Means, sums and extremes are
/// accumulated in float64 whatever the type of the value (in float32 on devices without float64),
/// on the device of the value; no function but the readers and state_dict() waits for a device. One
/// per Trainer, not thread-safe.
///
/// Order of calls: begin_run; load_state_dict when resuming; begin_phase; begin_epoch; for each
/// batch set_batch, hooks, commit; end_epoch before the *_epoch_end hooks; end_phase. An evaluation
/// inside an epoch of training nests.
class MetricStore {
 public:
  explicit MetricStore(CpuTensors cpu_tensors = CpuTensors::kReadAtOnce);
  ~MetricStore();
  MetricStore(const MetricStore&) = delete;
  MetricStore& operator=(const MetricStore&) = delete;

  /// Forgets everything.
  void begin_run();
  /// The phase whose metrics are logged from now on; an evaluation starts empty.
  void begin_phase(MetricPhase phase);
  /// Starts new sums, unless the last epoch was not ended: a resumed one goes on, and what the
  /// start hooks of the phase logged is kept.
  void begin_epoch();
  /// Before end_epoch, on several ranks: the sums of the running epoch become those over all ranks.
  /// `exchange` gets this rank's table and gives those of the ranks that count, in an order that is
  /// the same on all; metrics that only some ranks logged are there on all afterwards. Throws
  /// DistributedError if two ranks log a metric with different options.
  using Exchange = std::function<std::vector<StateDict>(const StateDict&)>;
  void reduce_epoch(const Exchange& exchange);
  /// The same for what *_epoch_end hooks logged after end_epoch.
  void reduce_epoch_hooks(const Exchange& exchange);
  /// Makes the results of the epoch visible; what the *_epoch_end hooks log is added as it comes.
  void end_epoch();
  /// Back to the phase around this one.
  void end_phase();

  /// Which hook runs; the dispatcher sets it around each hook.
  void set_hook(HookPoint hook) { hook_ = hook; }
  HookPoint hook() const { return hook_; }
  /// The batch must live until the hooks of the batch are done. Its rows are counted when a mean
  /// needs them.
  void set_batch(BatchView batch,
                 std::int64_t dataloader_idx = 0,
                 std::int64_t dataloader_count = 1);

  /// Records a number or a tensor of one element. In hooks of a batch it is pending until commit();
  /// in the start and epoch hooks of a phase it counts at once.
  /// Throws ConfigError: the hook allows no logging or no on_step; neither on_step nor on_epoch;
  /// not one element; a name that is empty or contains "/dataloader_idx_"; other options than
  /// before (batch_size may change); a name that another hook of the phase uses. Throws DataError
  /// if a mean needs the rows of a batch whose tensors disagree.
  void log(std::string_view name, const at::Tensor& value, const LogOptions& options = {});
  void log(std::string_view name, double value, const LogOptions& options = {});
  /// Takes over what is pending in this phase; may be called several times for a batch.
  void commit();
  /// Drops what is pending in this phase, without a trace.
  void discard();

  /// Values of the last batch for loggers, under forked names (x_step if x has on_epoch too).
  std::map<std::string, double> step_metrics(MetricPhase phase) const;
  /// Values of the epoch for loggers, under forked names. Empty before end_epoch().
  std::map<std::string, double> epoch_metrics(MetricPhase phase) const;
  /// Results of the epoch for each loader, under plain and forked names; what epoch hooks logged is
  /// in each.
  std::vector<std::map<std::string, double>> dataloader_results(MetricPhase phase) const;
  /// Of all phases of this run. Where a name stands for several values, the newest wins.
  /// Callback: step values of training and epoch values, under plain and forked names. The others:
  /// forked names.
  std::map<std::string, double> callback_metrics() const;
  std::map<std::string, double> progress_bar_metrics() const;
  std::map<std::string, double> logged_metrics() const;
  /// One of callback_metrics(); reads only that one.
  std::optional<double> metric(std::string_view name) const;
  /// Whether step_metrics() can be other than empty. Costs nothing.
  bool has_step_logger_metrics(MetricPhase phase) const;

  /// Everything committed, but for the sanity check; what is pending is left out. After
  /// load_state_dict all readers give the same values, bit for bit, and so do the sums that go on.
  StateDict state_dict() const;
  /// The state of a rank that goes on where several were: that of the first, with the sums of the
  /// open epoch of training over all of them. Throws as load_state_dict and reduce_epoch.
  static StateDict merge_open_sums(const std::vector<StateDict>& of_ranks);
  /// The same state with new sums in the open epoch of training.
  static StateDict without_open_sums(const StateDict& state);
  /// Replaces everything. A metric that the program logs with another hook, reduction, on_step or
  /// on_epoch than the saved one starts anew. Throws CheckpointError, and changes nothing then.
  void load_state_dict(const StateDict& state);

 private:
  enum class Dictionary : std::uint8_t { kCallback, kProgressBar, kLogged };
  std::map<std::string, double> dictionary(Dictionary which) const;
  template <class Visitor>
  void visit_published(Dictionary which, const Visitor& visit) const;
  detail::MetricTable& table(MetricPhase phase) const { return *tables_[static_cast<int>(phase)]; }
  void record(std::string_view name, const detail::MetricValue& value, const LogOptions& options);

  static constexpr int kPhases = 4;
  std::array<std::unique_ptr<detail::MetricTable>, kPhases> tables_;
  std::vector<MetricPhase> phases_;         ///< Innermost last.
  detail::MetricTable* current_ = nullptr;  ///< Of the innermost phase.
  std::int64_t clock_ = 0;                  ///< Counts values; tells which of two is newer.
  HookPoint hook_ = HookPoint::kOutside;
  CpuTensors cpu_tensors_;
};

}  // namespace fulmen
