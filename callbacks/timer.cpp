#include "fulmen/callbacks/timer.h"

#include <algorithm>
#include <cmath>

#include "callbacks/monitoring.h"
#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen {
namespace {

constexpr std::array<const char*, 4> kParts = {"train", "validate", "test", "predict"};

}  // namespace

std::shared_ptr<Timer> Timer::make(TimerOptions options) {
  const auto& max_time = options.max_time;
  if (max_time && !(max_time->count() > 0 && std::isfinite(max_time->count()))) {
    fail<ConfigError>("Timer",
                      "max_time must be greater than 0, got ",
                      max_time->count(),
                      " s. Leave it unset for no limit.");
  }
  return std::shared_ptr<Timer>(new Timer(std::move(options)));
}

std::chrono::steady_clock::time_point Timer::now() const {
  return options_.clock ? options_.clock() : std::chrono::steady_clock::now();
}

Timer::Seconds Timer::elapsed(Part part) const {
  const auto& clock = clocks_[static_cast<std::size_t>(part)];
  return clock.started ? clock.before + Seconds(now() - *clock.started) : clock.before;
}

std::optional<Timer::Seconds> Timer::remaining() const {
  if (!options_.max_time) return std::nullopt;
  return std::max(Seconds::zero(), *options_.max_time - elapsed());
}

void Timer::start(Part part) {
  clock(part).started = now();
}

void Timer::stop(Part part) {
  clock(part).before = elapsed(part);
  clock(part).started.reset();
}

void Timer::check(Context& context) {
  if (!options_.max_time || elapsed() < *options_.max_time) return;
  std::ostringstream reason;
  reason << "training took " << elapsed().count() << " s of the " << options_.max_time->count()
         << " s that Timer::max_time allows.";
  if (options_.verbose) context.log().info("Timer: ", reason.str());
  context.stop_training(reason.str());
}

void Timer::on_train_start(Context& context, Module&) {
  start(Part::kTrain);
  check(context);
}

void Timer::on_train_batch_end(
    Context& context, Module&, const StepOutput&, BatchView, std::int64_t) {
  if (options_.interval == Interval::kStep) check(context);
}

void Timer::on_train_epoch_end(Context& context, Module&) {
  if (options_.interval == Interval::kEpoch) check(context);
}

void Timer::on_train_end(Context&, Module&) {
  stop(Part::kTrain);
}

void Timer::on_validation_start(Context& context, Module&) {
  if (!context.sanity_checking()) start(Part::kValidate);
}

void Timer::on_validation_end(Context& context, Module&) {
  if (!context.sanity_checking()) stop(Part::kValidate);
}

void Timer::on_test_start(Context&, Module&) {
  start(Part::kTest);
}
void Timer::on_test_end(Context&, Module&) {
  stop(Part::kTest);
}
void Timer::on_predict_start(Context&, Module&) {
  start(Part::kPredict);
}
void Timer::on_predict_end(Context&, Module&) {
  stop(Part::kPredict);
}

void Timer::on_exception(Context&, Module&, const std::exception&) {
  for (std::size_t i = 0; i < clocks_.size(); ++i) stop(static_cast<Part>(i));
}

void Timer::on_interrupt(Context&, Module&, std::string_view) {
  for (std::size_t i = 0; i < clocks_.size(); ++i) stop(static_cast<Part>(i));
}

StateDict Timer::state_dict() const {
  boost::json::object seconds;
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    seconds[kParts[i]] = double_to_json(elapsed(static_cast<Part>(i)).count());
  }
  StateDict state;
  state.values["elapsed_seconds"] = std::move(seconds);
  return state;
}

void Timer::load_state_dict(const StateDict& state) {
  const auto& seconds = require_object(state.values, "elapsed_seconds", "Timer");
  for (std::size_t i = 0; i < kParts.size(); ++i) {
    const auto* value = seconds.if_contains(kParts[i]);
    clocks_[i].before = Seconds(value != nullptr ? json_to_double(*value, "Timer") : 0);
  }
}

}  // namespace fulmen
