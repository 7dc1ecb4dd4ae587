#pragma once

#include <algorithm>

#include "tests/trainer/recording_optimizer.h"

namespace fulmen {

/// A ModelCheckpoint, with its hooks recorded, and the directories that appear and vanish
/// meanwhile.
class RecordingCheckpoint final : public Callback {
 public:
  RecordingCheckpoint(Events& events, std::shared_ptr<ModelCheckpoint> inner)
      : events_(events), inner_(std::move(inner)) {}
  CallbackKind kind() const override { return inner_->kind(); }
  std::string state_key() const override { return inner_->state_key(); }
  StateDict state_dict() const override { return inner_->state_dict(); }
  void load_state_dict(const StateDict& state) override {
    watch([&] { inner_->load_state_dict(state); }, "load_state_dict");
  }
  bool saves_on_exception() const override { return inner_->saves_on_exception(); }
  void setup(Context& context, Module& module, Stage stage) override {
    watch([&] { inner_->setup(context, module, stage); }, "setup", stage);
  }
  void on_train_start(Context& context, Module& module) override {
    watch([&] { inner_->on_train_start(context, module); }, "on_train_start");
  }
  void on_train_batch_end(Context& context,
                          Module& module,
                          const StepOutput& outputs,
                          BatchView batch,
                          Index i) override {
    watch([&] { inner_->on_train_batch_end(context, module, outputs, batch, i); },
          "on_train_batch_end",
          i);
  }
  void on_validation_end(Context& context, Module& module) override {
    watch([&] { inner_->on_validation_end(context, module); }, "on_validation_end");
  }
  void on_train_epoch_end(Context& context, Module& module) override {
    watch([&] { inner_->on_train_epoch_end(context, module); }, "on_train_epoch_end");
  }
  void on_train_end(Context& context, Module& module) override {
    watch([&] { inner_->on_train_end(context, module); }, "on_train_end");
  }
  void on_exception(Context& context, Module& module, const std::exception& error) override {
    watch([&] { inner_->on_exception(context, module, error); }, "on_exception");
  }

 private:
  template <class Action, class... Arguments>
  void watch(const Action& action, const char* hook, Arguments... arguments) {
    events_.add("checkpoint", hook, arguments...);
    const auto before = list_checkpoints(inner_->options().dirpath);
    action();
    const auto after = list_checkpoints(inner_->options().dirpath);
    const auto missing_in = [](const auto& list, const auto& path) {
      return std::ranges::find(list, path) == list.end();
    };
    for (const auto& path : after) {
      if (missing_in(before, path)) events_.add("checkpoint", "save");
    }
    for (const auto& path : before) {
      if (missing_in(after, path)) events_.add("checkpoint", "remove");
    }
  }

  Events& events_;
  std::shared_ptr<ModelCheckpoint> inner_;
};

}  // namespace fulmen
