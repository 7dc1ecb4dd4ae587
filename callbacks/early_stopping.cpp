#include "fulmen/callbacks/early_stopping.h"

#include <cmath>
#include <sstream>
#include <utility>

#include "callbacks/monitoring.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen {
namespace {

constexpr std::string_view kWhere = "EarlyStopping";

template <class... Parts>
std::string text_of(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

void check_threshold(const char* option, const std::optional<double>& value) {
  if (value && std::isnan(*value)) fail<ConfigError>(kWhere, option, " must be a number, got NaN.");
}

}  // namespace

std::shared_ptr<EarlyStopping> EarlyStopping::make(EarlyStoppingOptions options) {
  if (options.monitor.empty()) {
    fail<ConfigError>(kWhere,
                      "monitor is empty. Name the metric that decides, for example \"val_loss\".");
  }
  if (!(options.min_delta >= 0 && std::isfinite(options.min_delta))) {
    fail<ConfigError>(
        kWhere, "min_delta must be at least 0 and finite, got ", options.min_delta, ".");
  }
  if (options.patience < 0) {
    fail<ConfigError>(kWhere, "patience must be at least 0, got ", options.patience, ".");
  }
  check_threshold("stopping_threshold", options.stopping_threshold);
  check_threshold("divergence_threshold", options.divergence_threshold);
  return std::shared_ptr<EarlyStopping>(new EarlyStopping(std::move(options)));
}

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)) {}

void EarlyStopping::reset() {
  wait_count_ = 0;
  stopped_epoch_.reset();
  stopped_batches_ = -1;
  best_score_.reset();
  reason_.clear();
}

void EarlyStopping::on_train_start(Context& context, Module&) {
  validated_ = false;
  const bool nothing_since = stopped_batches_ == context.progress().total_batches;
  const bool still_holds = wait_count_ == 0 || wait_count_ >= options_.patience;
  if (!stopped_epoch_ || !nothing_since || !still_holds) return;
  reason_ = text_of(
      "the run was stopped by ", options_.monitor, " in epoch ", *stopped_epoch_, " already.");
  context.stop_training(reason_);
}

void EarlyStopping::on_validation_end(Context& context, Module&) {
  if (!detail::decides(context)) return;
  validated_ = true;
  if (!detail::acts_at_train_epoch_end(context.plan(), options_.check_on_train_epoch_end))
    check(context);
}

void EarlyStopping::on_train_epoch_end(Context& context, Module&) {
  if (!detail::decides(context)) return;
  if (detail::acts_at_train_epoch_end(context.plan(), options_.check_on_train_epoch_end))
    check(context);
}

void EarlyStopping::check(Context& context) {
  const auto value = context.metric(options_.monitor);
  if (!value) return report_missing(context);
  reason_ = judge(context, *value);
  if (reason_.empty()) {
    stopped_epoch_.reset();
    return;
  }
  stopped_epoch_ = context.progress().epoch;
  stopped_batches_ = context.progress().total_batches;
  context.stop_training(reason_);
}

void EarlyStopping::report_missing(Context& context) const {
  // Before the first validation a metric of validation cannot be there.
  if (options_.strict && (validated_ || !context.plan().has_validation)) {
    fail<ConfigError>(kWhere,
                      "monitor needs the metric '",
                      options_.monitor,
                      "', which was not logged. Logged were: ",
                      detail::known_metrics(context),
                      ". Log it, change monitor, or set strict to false.");
  }
  context.log().warning_once(
      kWhere, ": the metric '", options_.monitor, "' was not logged; this check is left out.");
}

std::string EarlyStopping::judge(Context& context, double value) {
  const auto better = [&](double a, double b) { return detail::is_better(options_.mode, a, b); };
  const auto& name = options_.monitor;
  if (options_.check_finite && !std::isfinite(value)) {
    return text_of(name,
                   " = ",
                   value,
                   " is not finite; the best value before was ",
                   best_score_ ? text_of(*best_score_) : "none",
                   ".");
  }
  if (options_.stopping_threshold && better(value, *options_.stopping_threshold)) {
    return text_of(name,
                   " = ",
                   value,
                   " is better than the stopping threshold ",
                   *options_.stopping_threshold,
                   ".");
  }
  if (options_.divergence_threshold && better(*options_.divergence_threshold, value)) {
    return text_of(name,
                   " = ",
                   value,
                   " is worse than the divergence threshold ",
                   *options_.divergence_threshold,
                   ".");
  }
  const double margin =
      options_.mode == MonitorMode::kMin ? options_.min_delta : -options_.min_delta;
  if (!best_score_ || std::isnan(*best_score_) || better(value + margin, *best_score_)) {
    if (options_.verbose) {
      context.log().info(kWhere,
                         ": ",
                         name,
                         " improved",
                         best_score_ ? text_of(" from ", *best_score_) : "",
                         " to ",
                         value,
                         ".");
    }
    best_score_ = value;
    wait_count_ = 0;
    return {};
  }
  ++wait_count_;
  if (wait_count_ < options_.patience) return {};
  return text_of(name,
                 " did not improve on ",
                 *best_score_,
                 " in the last ",
                 wait_count_,
                 " checks",
                 options_.min_delta > 0 ? text_of(" by more than ", options_.min_delta) : "",
                 ".");
}

std::string EarlyStopping::state_key() const {
  return text_of(
      "EarlyStopping{monitor=", options_.monitor, ", mode=", detail::mode_name(options_.mode), "}");
}

StateDict EarlyStopping::state_dict() const {
  StateDict state;
  state.values["wait_count"] = wait_count_;
  if (stopped_epoch_) {
    state.values["stopped_epoch"] = *stopped_epoch_;
    state.values["stopped_batches"] = stopped_batches_;
  }
  if (best_score_) state.values["best_score"] = double_to_json(*best_score_);
  state.values["patience"] = options_.patience;
  return state;
}

void EarlyStopping::load_state_dict(const StateDict& state) {
  const auto& values = state.values;
  wait_count_ = require_int(values, "wait_count", kWhere);
  stopped_epoch_.reset();
  if (values.contains("stopped_epoch")) {
    stopped_epoch_ = require_int(values, "stopped_epoch", kWhere);
    stopped_batches_ = require_int(values, "stopped_batches", kWhere);
  }
  best_score_.reset();
  if (const auto* score = values.if_contains("best_score"))
    best_score_ = json_to_double(*score, kWhere);
}

}  // namespace fulmen
