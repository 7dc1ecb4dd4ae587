#include "fulmen/trainer/options.h"

#include <cmath>
#include <sstream>

#include "fulmen/core/distributed/environment.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

constexpr std::string_view kWhere = "TrainerOptions";

void require_at_least(std::string_view option,
                      std::int64_t value,
                      std::int64_t least,
                      std::string_view hint = "") {
  if (value < least) {
    fail<ConfigError>(kWhere, option, " must be at least ", least, ", got ", value, ".", hint);
  }
}

void check_limit(std::string_view option, const BatchLimit& limit) {
  if (limit.kind() == BatchLimit::Kind::kFraction && !(limit.value() >= 0 && limit.value() <= 1)) {
    fail<ConfigError>(kWhere,
                      option,
                      " as a fraction must be between 0 and 1, got ",
                      limit.value(),
                      ". For a number of batches write fulmen::batches(n).");
  }
  if (limit.kind() == BatchLimit::Kind::kBatches && limit.value() < 0) {
    fail<ConfigError>(kWhere, option, " must be at least 0 batches, got ", limit.value(), ".");
  }
}

void check_interval(const ValidationInterval& interval) {
  using Kind = ValidationInterval::Kind;
  if (interval.kind() == Kind::kFraction && !(interval.value() > 0 && interval.value() <= 1)) {
    fail<ConfigError>(kWhere,
                      "val_check_interval as a fraction must be greater than 0 and at most 1, got ",
                      interval.value(),
                      ". For a number of batches write fulmen::every_n_batches(n).");
  }
  if (interval.kind() == Kind::kTime && !(interval.value() > 0)) {
    fail<ConfigError>(kWhere,
                      "val_check_interval as a duration must be longer than 0 s, got ",
                      interval.value(),
                      " s.");
  }
  const bool counts = interval.kind() != Kind::kFraction && interval.kind() != Kind::kTime;
  if (counts && interval.value() < 1) {
    fail<ConfigError>(kWhere, "val_check_interval must be at least 1, got ", interval.value(), ".");
  }
}

void check_run_lengths(const TrainerOptions& options) {
  if (options.max_epochs)
    require_at_least("max_epochs", *options.max_epochs, -1, " -1 means no limit.");
  if (options.max_steps)
    require_at_least("max_steps", *options.max_steps, -1, " -1 means no limit.");
  if (options.min_epochs) require_at_least("min_epochs", *options.min_epochs, 0);
  if (options.min_steps) require_at_least("min_steps", *options.min_steps, 0);
  if (options.max_time && !(options.max_time->count() > 0)) {
    fail<ConfigError>(
        kWhere, "max_time must be longer than 0 s, got ", options.max_time->count(), " s.");
  }
  if (options.min_epochs && options.max_epochs && *options.max_epochs >= 0 &&
      *options.min_epochs > *options.max_epochs) {
    fail<ConfigError>(kWhere,
                      "min_epochs must not be greater than max_epochs, got ",
                      *options.min_epochs,
                      " and ",
                      *options.max_epochs,
                      ".");
  }
  if (options.min_steps && options.max_steps && *options.max_steps >= 0 &&
      *options.min_steps > *options.max_steps) {
    fail<ConfigError>(kWhere,
                      "min_steps must not be greater than max_steps, got ",
                      *options.min_steps,
                      " and ",
                      *options.max_steps,
                      ".");
  }
  require_at_least("fast_dev_run", options.fast_dev_run, 0);
  require_at_least(
      "num_sanity_val_steps", options.num_sanity_val_steps, -1, " -1 means all batches.");
  require_at_least("log_every_n_steps", options.log_every_n_steps, 0, " 0 means never.");
  require_at_least("check_val_every_n_epoch", options.check_val_every_n_epoch, 1);
  require_at_least("accumulate_grad_batches", options.accumulate_grad_batches, 1);
  require_at_least("reload_dataloaders_every_n_epochs",
                   options.reload_dataloaders_every_n_epochs,
                   0,
                   " 0 means never.");
}

void check_barebones(const TrainerOptions& options) {
  if (!options.barebones) return;
  if (options.loggers && !options.loggers->empty()) {
    fail<ConfigError>(kWhere,
                      "barebones = true turns loggers off, but loggers holds ",
                      options.loggers->size(),
                      ". Give one of the two.");
  }
  if (!options.callbacks.empty()) {
    fail<ConfigError>(kWhere,
                      "barebones = true turns callbacks off, but callbacks holds ",
                      options.callbacks.size(),
                      ". Give one of the two.");
  }
}

}  // namespace

BatchLimit batches(std::int64_t count) {
  return {BatchLimit::Kind::kBatches, static_cast<double>(count)};
}
BatchLimit fraction(double part) {
  return {BatchLimit::Kind::kFraction, part};
}

ValidationInterval every_fraction(double part) {
  return {ValidationInterval::Kind::kFraction, part};
}
ValidationInterval every_n_batches(std::int64_t n) {
  return {ValidationInterval::Kind::kBatches, static_cast<double>(n)};
}
ValidationInterval every_n_batches_across_epochs(std::int64_t n) {
  return {ValidationInterval::Kind::kBatchesAcrossEpochs, static_cast<double>(n)};
}
ValidationInterval every_n_steps(std::int64_t n) {
  return {ValidationInterval::Kind::kSteps, static_cast<double>(n)};
}
ValidationInterval every_duration(Seconds time) {
  return {ValidationInterval::Kind::kTime, time.count()};
}

Seconds parse_duration(std::string_view text) {
  std::istringstream stream{std::string(text)};
  double days = 0, hours = 0, minutes = 0, seconds = 0;
  char a = 0, b = 0, c = 0, rest = 0;
  const bool read = static_cast<bool>(stream >> days >> a >> hours >> b >> minutes >> c >> seconds);
  const bool separated = a == ':' && b == ':' && c == ':';
  const bool in_range = days >= 0 && hours >= 0 && hours < 24 && minutes >= 0 && minutes < 60 &&
                        seconds >= 0 && seconds < 60;
  if (!read || !separated || !in_range || (stream >> rest)) {
    fail<ConfigError>(
        "parse_duration",
        "expected \"DD:HH:MM:SS\", for example \"00:12:00:00\" for twelve hours, got \"",
        text,
        "\".");
  }
  return Seconds(((days * 24 + hours) * 60 + minutes) * 60 + seconds);
}

std::int64_t launched_ranks() {
  const auto job = detect_job(process_environment());
  return job ? job->topology.world_size : 1;
}

void validate(const TrainerOptions& options) {
  if (options.devices != kAsLaunched) require_at_least("devices", options.devices, 1);
  require_at_least("num_nodes", options.num_nodes, 1);
  const auto& name = options.accelerator.name();
  if (options.accelerator.object() == nullptr && name != "auto" && name != "cpu" &&
      name != "cuda") {
    fail<ConfigError>(
        kWhere,
        "accelerator must be \"auto\", \"cpu\", \"cuda\" or an Accelerator object, got \"",
        name,
        "\".");
  }
  for (const auto& callback : options.callbacks) {
    if (callback == nullptr) fail<ConfigError>(kWhere, "callbacks holds a null pointer.");
  }
  if (options.loggers) {
    for (const auto& logger : *options.loggers) {
      if (logger == nullptr)
        fail<ConfigError>(kWhere,
                          "loggers holds a null pointer. For no logger give an empty list.");
    }
  }
  check_run_lengths(options);
  check_limit("limit_train_batches", options.limit_train_batches);
  check_limit("limit_val_batches", options.limit_val_batches);
  check_limit("limit_test_batches", options.limit_test_batches);
  check_limit("limit_predict_batches", options.limit_predict_batches);
  if (options.overfit_batches) check_limit("overfit_batches", *options.overfit_batches);
  check_interval(options.val_check_interval);
  if (options.gradient_clip_val &&
      !(*options.gradient_clip_val > 0 && std::isfinite(*options.gradient_clip_val))) {
    fail<ConfigError>(kWhere,
                      "gradient_clip_val must be greater than 0 and finite, got ",
                      *options.gradient_clip_val,
                      ". Leave it unset for no clipping.");
  }
  check_barebones(options);
}

}  // namespace fulmen
