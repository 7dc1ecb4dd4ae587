#include "fulmen/callbacks/model_checkpoint.h"

#include <cmath>
#include <utility>

#include "callbacks/monitoring.h"
#include "fulmen/core/distributed/strategy.h"
#include "fulmen/core/loggers/logger.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen {
namespace {

using detail::decides;

constexpr std::string_view kWhere = "ModelCheckpoint";

void check_at_least_one(const char* option, const std::optional<std::int64_t>& value) {
  if (value && *value < 1) {
    fail<ConfigError>(
        kWhere, option, " must be at least 1, got ", *value, ". Leave it unset to turn it off.");
  }
}

void validate(const ModelCheckpointOptions& options) {
  if (options.save_top_k < -1) {
    fail<ConfigError>(
        kWhere, "save_top_k must be -1 (all), 0 (none) or more, got ", options.save_top_k, ".");
  }
  if (options.save_top_k > 1 && options.monitor.empty()) {
    fail<ConfigError>(kWhere,
                      "save_top_k = ",
                      options.save_top_k,
                      " needs a metric to rank by. Set monitor, or "
                      "save_top_k to 1 (the newest), -1 (all) or 0 (none).");
  }
  check_at_least_one("every_n_train_steps", options.every_n_train_steps);
  check_at_least_one("every_n_epochs", options.every_n_epochs);
  const auto& interval = options.train_time_interval;
  if (interval && !(interval->count() > 0 && std::isfinite(interval->count()))) {
    fail<ConfigError>(
        kWhere, "train_time_interval must be greater than 0, got ", interval->count(), " s.");
  }
  const int triggers = options.every_n_train_steps.has_value() +
                       options.every_n_epochs.has_value() + interval.has_value();
  if (triggers > 1) {
    fail<ConfigError>(kWhere,
                      triggers,
                      " of every_n_train_steps, every_n_epochs and train_time_interval are set. "
                      "Set one, or use several ModelCheckpoints.");
  }
}

}  // namespace

std::shared_ptr<ModelCheckpoint> ModelCheckpoint::make(ModelCheckpointOptions options) {
  validate(options);
  if (!options.every_n_train_steps && !options.train_time_interval && !options.every_n_epochs) {
    options.every_n_epochs = 1;
  }
  return std::shared_ptr<ModelCheckpoint>(new ModelCheckpoint(std::move(options)));
}

ModelCheckpoint::ModelCheckpoint(ModelCheckpointOptions options)
    : options_(std::move(options)),
      names_(options_.filename,
             options_.auto_insert_metric_name ? CheckpointNameTemplate::Insert::kKeyAndValue
                                              : CheckpointNameTemplate::Insert::kValueOnly) {}

std::chrono::steady_clock::time_point ModelCheckpoint::now() const {
  return options_.clock ? options_.clock() : std::chrono::steady_clock::now();
}

void ModelCheckpoint::reset() {
  state_ = {};
  loaded_directory_.clear();
  foreign_best_.clear();
}

void ModelCheckpoint::setup(Context& context, Module&, Stage stage) {
  // Other stages look for "last" and "best" there, but make no folder of a logger.
  if (context.plan().fast_dev_run || (stage != Stage::kFit && options_.dirpath.empty())) return;
  auto directory = options_.dirpath;
  if (directory.empty()) {
    const auto loggers = context.loggers();
    const auto log_dir = loggers.empty() ? std::filesystem::path() : loggers.front()->log_dir();
    directory = (log_dir.empty() ? context.plan().default_root_dir : log_dir) / "checkpoints";
  }
  directory_ = detail::from_rank_zero(
      context, std::filesystem::weakly_canonical(std::filesystem::absolute(directory)).string());
}

void ModelCheckpoint::on_train_start(Context& context, Module&) {
  if (!decides(context)) return;
  if (directory_.empty()) {
    fail<ConfigError>(kWhere, "on_train_start was called without setup(fit) before it.");
  }
  adopt_loaded_state(context);
  saves_ = 0;
  declined_ = 0;
  validated_ = false;
  warned_of_clash_ = false;
  batches_at_start_ = context.progress().total_batches;
  step_at_last_batch_ = context.progress().global_step;
  last_save_time_ = now();
}

void ModelCheckpoint::on_train_batch_end(
    Context& context, Module&, const StepOutput&, BatchView, std::int64_t batch_idx) {
  if (options_.every_n_epochs || !decides(context)) return;
  bool due = false;
  if (options_.every_n_train_steps) {
    const auto every = *options_.every_n_train_steps;
    const auto step = context.progress().global_step;
    due = step / every > state_.trigger_step / every;
    state_.trigger_step = step;
  } else {
    due = time_is_due(context);
  }
  if (!due) return;
  if (must_wait(context, batch_idx)) {
    state_.postponed = true;
  } else {
    save_if_kept(context);
  }
}

bool ModelCheckpoint::time_is_due(Context& context) {
  const auto step = context.progress().global_step;
  // A save inside a window of micro-batches would have to keep its open gradients. Where no step
  // was ever counted there may be no windows.
  const bool window_open = step == std::exchange(step_at_last_batch_, step) && step > 0;
  const bool due = !window_open && now() - last_save_time_ >= *options_.train_time_interval;
  if (detail::agree_on_max(context, due ? 1 : 0) == 0) return false;
  last_save_time_ = now();
  return true;
}

bool ModelCheckpoint::metrics_known(Context& context) const {
  bool known = options_.monitor.empty() || context.metric(options_.monitor).has_value();
  for (const auto& name : names_.metrics()) known &= context.metric(name).has_value();
  return detail::agree_on_max(context, known ? 0 : 1) == 0;
}

bool ModelCheckpoint::must_wait(Context& context, std::int64_t batch_idx) const {
  const auto& plan = context.plan();
  if (!plan.has_validation || (options_.monitor.empty() && names_.metrics().empty())) return false;
  const bool last = plan.train_batches && batch_idx + 1 >= *plan.train_batches;
  return last || (!validated_ && !metrics_known(context));
}

void ModelCheckpoint::on_validation_end(Context& context, Module&) {
  if (!decides(context)) return;
  validated_ = true;
  if (std::exchange(state_.postponed, false)) {
    save_if_kept(context);
  } else if (options_.every_n_epochs &&
             !detail::acts_at_train_epoch_end(context.plan(), options_.save_on_train_epoch_end) &&
             (context.progress().epoch + 1) % *options_.every_n_epochs == 0) {
    save_if_kept(context);
  }
}

void ModelCheckpoint::on_train_epoch_end(Context& context, Module&) {
  if (!decides(context)) return;
  if (state_.postponed && metrics_known(context)) {
    // The validation that this save waited for was not due in this epoch.
    state_.postponed = false;
    save_if_kept(context);
  } else if (options_.every_n_epochs &&
             detail::acts_at_train_epoch_end(context.plan(), options_.save_on_train_epoch_end) &&
             (context.progress().epoch + 1) % *options_.every_n_epochs == 0) {
    save_if_kept(context);
  }
}

void ModelCheckpoint::on_train_end(Context& context, Module&) {
  if (!decides(context)) return;
  if (std::exchange(state_.postponed, false) && metrics_known(context)) save_if_kept(context);
  const auto trained = context.progress().total_batches - batches_at_start_;
  const bool wanted = options_.save_top_k != 0 || options_.save_last != SaveLast::kNo;
  if (!wanted || trained == 0 || saves_ + declined_ > 0) return;
  const char* reason = options_.every_n_epochs ? "no epoch that triggers a save ended"
                       : options_.train_time_interval
                           ? "the run was shorter than train_time_interval"
                           : "every_n_train_steps was not reached";
  const bool unknown = !metrics_known(context);
  context.log().warning(kWhere,
                        ": the run trained ",
                        trained,
                        " batches and saved no checkpoint: ",
                        unknown ? "the metrics that it needs were not logged" : reason,
                        ".");
}

void ModelCheckpoint::on_exception(Context& context, Module&, const std::exception& error) {
  const auto& progress = context.progress();
  const bool trained = progress.global_step > 0 || progress.total_batches > 0;
  if (!options_.save_on_exception || !decides(context) || !trained || directory_.empty()) return;
  if (context.strategy().topology().world_size > 1) {
    context.log().warning(kWhere,
                          ": nothing is saved after an error on one of several ranks, since the ",
                          "others do not take part. The checkpoint before stands.");
    return;
  }
  try {
    save_forced(context, CheckpointNameTemplate("exception-{epoch}-{step}"));
  } catch (const std::exception& second) {
    context.log().error(kWhere,
                        ": no checkpoint could be saved after the error '",
                        error.what(),
                        "': ",
                        second.what());
  }
}

void ModelCheckpoint::on_interrupt(Context& context, Module&, std::string_view) {
  if (!options_.save_on_interrupt || !decides(context) || directory_.empty()) return;
  save_forced(context, CheckpointNameTemplate("interrupted-{epoch}-{step}"));
}

std::string ModelCheckpoint::state_key() const {
  std::ostringstream key;
  key << "ModelCheckpoint{monitor=" << options_.monitor
      << ", mode=" << detail::mode_name(options_.mode);
  if (options_.every_n_train_steps)
    key << ", every_n_train_steps=" << *options_.every_n_train_steps;
  if (options_.every_n_epochs) key << ", every_n_epochs=" << *options_.every_n_epochs;
  if (options_.train_time_interval)
    key << ", train_time_interval=" << options_.train_time_interval->count();
  key << ", filename=" << options_.filename << "}";
  return key.str();
}

}  // namespace fulmen
