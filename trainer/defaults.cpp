#include <algorithm>
#include <iostream>
#include <map>

#include "fulmen/callbacks/model_checkpoint.h"
#include "fulmen/callbacks/model_summary.h"
#include "fulmen/callbacks/progress_bar.h"
#include "fulmen/callbacks/results_table.h"
#include "fulmen/callbacks/timer.h"
#include "fulmen/core/loggers/csv_logger.h"
#include "fulmen/core/support/error.h"
#include "loops/fit_loop.h"
#include "session.h"

namespace fulmen::detail {
namespace {

bool has_kind(const std::vector<std::shared_ptr<Callback>>& callbacks, CallbackKind kind) {
  return std::any_of(callbacks.begin(), callbacks.end(), [&](const auto& callback) {
    return callback->kind() == kind;
  });
}

template <class C>
bool has_type(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  return std::any_of(callbacks.begin(), callbacks.end(), [](const auto& callback) {
    return dynamic_cast<const C*>(callback.get()) != nullptr;
  });
}

void check_callbacks(const std::vector<std::shared_ptr<Callback>>& callbacks) {
  std::map<std::string, int> keys;
  int bars = 0;
  for (const auto& callback : callbacks) {
    if (callback->kind() == CallbackKind::kProgressBar) ++bars;
    if (++keys[callback->state_key()] > 1 && !callback->state_dict().empty()) {
      fail<ConfigError>("Trainer",
                        "two callbacks store their state as \"",
                        callback->state_key(),
                        "\". Override state_key() in one, or leave one out.");
    }
  }
  if (bars > 1)
    fail<ConfigError>(
        "Trainer",
        "there are ",
        bars,
        " progress bars; one at most can draw. Leave one out, or set enable_progress_bar = false.");
}

}  // namespace

void Session::make_default_loggers() {
  if (options.loggers) {
    own_loggers_ = *options.loggers;
  } else if (!options.barebones && options.fast_dev_run == 0) {
    own_loggers_.push_back(CSVLogger::make({.save_dir = options.default_root_dir}));
  }
  if (options.fast_dev_run > 0) own_loggers_.clear();
  loggers_ = own_loggers_;
}

void Session::make_default_callbacks() {
  own_callbacks_ = options.callbacks;
  const bool files = options.fast_dev_run == 0;
  const bool extras = !options.barebones;
  const bool given_checkpoint = has_kind(own_callbacks_, CallbackKind::kCheckpoint);
  if (given_checkpoint && !options.enable_checkpointing) {
    fail<ConfigError>(
        "TrainerOptions",
        "enable_checkpointing is false, but callbacks holds a ModelCheckpoint. Give one ",
        "of the two.");
  }
  const bool given_bar = has_kind(own_callbacks_, CallbackKind::kProgressBar);
  if (given_bar && !options.enable_progress_bar) {
    fail<ConfigError>(
        "TrainerOptions",
        "enable_progress_bar is false, but callbacks holds a progress bar. Give one of ",
        "the two.");
  }
  if (options.max_time) own_callbacks_.push_back(Timer::make({.max_time = *options.max_time}));
  if (extras && options.enable_progress_bar && !given_bar) {
    own_callbacks_.push_back(default_bar_ = ProgressBar::make());
  }
  if (extras && options.enable_model_summary && !has_type<ModelSummary>(own_callbacks_)) {
    own_callbacks_.push_back(ModelSummary::make());
  }
  if (extras && files && options.enable_checkpointing && !given_checkpoint) {
    own_callbacks_.push_back(default_checkpoint_ = ModelCheckpoint::make());
  }
  callbacks_ = own_callbacks_;
  check_callbacks(callbacks_);
}

void Session::connect_callbacks() {
  callbacks_ = own_callbacks_;
  for (auto& callback : hook(HookPoint::kConfigureCallbacks).configure_callbacks()) {
    if (callback == nullptr)
      fail<ConfigError>(module->name(), "configure_callbacks returned a null pointer.");
    const auto same = [&](const auto& other) {
      return other->state_key() == callback->state_key();
    };
    std::erase_if(callbacks_, same);
    // What the module brings takes the place of what the trainer added by itself.
    if (callback->kind() == CallbackKind::kCheckpoint) std::erase(callbacks_, default_checkpoint_);
    if (callback->kind() == CallbackKind::kProgressBar) std::erase(callbacks_, default_bar_);
    callbacks_.push_back(std::move(callback));
  }
  // Checkpoints see what the others did.
  std::stable_partition(callbacks_.begin(), callbacks_.end(), [](const auto& callback) {
    return callback->kind() != CallbackKind::kCheckpoint;
  });
  check_callbacks(callbacks_);
}

void Session::print_results(Stage stage, const EvalResults& results) {
  if (const auto table = format_results_table(stage, results); !table.empty())
    std::cout << table << std::endl;
}

}  // namespace fulmen::detail
