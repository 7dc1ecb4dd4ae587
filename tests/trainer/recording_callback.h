#pragma once

#include "tests/trainer/recording_optimizer.h"

namespace fulmen {

class RecordingCallback final : public Callback {
 public:
  RecordingCallback(Events& events, std::optional<Index> stop_at)
      : events_(events), stop_at_(stop_at) {}
  std::string state_key() const override { return "recorder"; }
  StateDict state_dict() const override { return {.values = {{"n", 1}}, .tensors = {}}; }
  void load_state_dict(const StateDict&) override { record("load_state_dict"); }
  void setup(Context&, Module&, Stage stage) override { record("setup", stage); }
  void teardown(Context&, Module&, Stage stage) override { record("teardown", stage); }
  void on_fit_start(Context&, Module&) override { record("on_fit_start"); }
  void on_fit_end(Context&, Module&) override { record("on_fit_end"); }
  void on_sanity_check_start(Context&, Module&) override { record("on_sanity_check_start"); }
  void on_sanity_check_end(Context&, Module&) override { record("on_sanity_check_end"); }
  void on_train_start(Context&, Module&) override { record("on_train_start"); }
  void on_train_end(Context&, Module&) override { record("on_train_end"); }
  void on_train_epoch_start(Context&, Module&) override { record("on_train_epoch_start"); }
  void on_train_epoch_end(Context&, Module&) override { record("on_train_epoch_end"); }
  void on_validation_start(Context&, Module&) override { record("on_validation_start"); }
  void on_validation_end(Context&, Module&) override { record("on_validation_end"); }
  void on_validation_epoch_start(Context&, Module&) override {
    record("on_validation_epoch_start");
  }
  void on_validation_epoch_end(Context&, Module&) override { record("on_validation_epoch_end"); }
  void on_test_start(Context&, Module&) override { record("on_test_start"); }
  void on_test_end(Context&, Module&) override { record("on_test_end"); }
  void on_test_epoch_start(Context&, Module&) override { record("on_test_epoch_start"); }
  void on_test_epoch_end(Context&, Module&) override { record("on_test_epoch_end"); }
  void on_predict_start(Context&, Module&) override { record("on_predict_start"); }
  void on_predict_end(Context&, Module&) override { record("on_predict_end"); }
  void on_predict_epoch_start(Context&, Module&) override { record("on_predict_epoch_start"); }
  void on_predict_epoch_end(Context&, Module&) override { record("on_predict_epoch_end"); }
  void on_configure_sharded_model(Context&, Module&) override {
    record("on_configure_sharded_model");
  }
  void on_after_backward(Context&, Module&) override { record("on_after_backward"); }
  void on_before_zero_grad(Context&, Module&, Optimizer&) override {
    record("on_before_zero_grad");
  }
  void on_before_backward(Context&, Module&, const at::Tensor&) override {
    record("on_before_backward");
  }
  void on_before_optimizer_step(Context&, Module&, Optimizer&) override {
    record("on_before_optimizer_step");
  }
  void on_exception(Context&, Module&, const std::exception&) override { record("on_exception"); }
  void on_interrupt(Context&, Module&, std::string_view) override { record("on_interrupt"); }
  void on_save_checkpoint(Context&, Module&, StateDict&) override { record("on_save_checkpoint"); }
  void on_load_checkpoint(Context&, Module&, const StateDict&) override {
    record("on_load_checkpoint");
  }
  void on_train_batch_start(Context&, Module&, BatchView, Index i) override {
    record("on_train_batch_start", i);
  }
  void on_train_batch_end(
      Context& context, Module&, const StepOutput&, BatchView, Index i) override {
    record("on_train_batch_end", i);
    if (i == stop_at_) context.stop_training("planned");
  }
  void on_validation_batch_start(Context&, Module&, BatchView, Index i, Index) override {
    record("on_validation_batch_start", i);
  }
  void on_validation_batch_end(
      Context&, Module&, const StepOutput&, BatchView, Index i, Index) override {
    record("on_validation_batch_end", i);
  }
  void on_test_batch_start(Context&, Module&, BatchView, Index i, Index) override {
    record("on_test_batch_start", i);
  }
  void on_test_batch_end(Context&, Module&, const StepOutput&, BatchView, Index i, Index) override {
    record("on_test_batch_end", i);
  }
  void on_predict_batch_start(Context&, Module&, BatchView, Index i, Index) override {
    record("on_predict_batch_start", i);
  }
  void on_predict_batch_end(Context&, Module&, BatchView, BatchView, Index i, Index) override {
    record("on_predict_batch_end", i);
  }

 private:
  template <class... Arguments>
  void record(const char* hook, Arguments... arguments) {
    events_.add("callback", hook, arguments...);
  }

  Events& events_;
  std::optional<Index> stop_at_;
};

}  // namespace fulmen
