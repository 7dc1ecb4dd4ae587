#pragma once

#include <fulmen/fulmen.h>
#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake_trainer.h"

namespace fulmen {

/// One batch of one column, float64.
inline Batch column(std::initializer_list<double> rows) {
  return {{torch::tensor(std::vector<double>(rows), torch::kFloat64)}};
}

/// A batch of one row for each number.
inline std::vector<Batch> singles(std::initializer_list<double> rows) {
  std::vector<Batch> result;
  for (double row : rows) result.push_back(column({row}));
  return result;
}

struct ToyOptions {
  double lr = 1;
  double w0 = 0;
  c10::ScalarType dtype = c10::ScalarType::Double;
};

/// One weight w, loss = mean(w * x), SGD: the gradient is mean(x), so values can be worked out by
/// hand.
class Toy : public LightningModule<> {
 public:
  using Step = std::function<StepOutput(Toy&, Batch&, std::int64_t)>;
  using EvalStep = std::function<void(Toy&, Batch&, std::int64_t, std::int64_t)>;

  explicit Toy(ToyOptions options = {}) : LightningModule("Toy"), options_(options) {
    w = register_parameter("w", torch::full({}, options.w0, options.dtype));
  }

  at::Tensor loss(const Batch& batch) const { return (w * batch.tensors[0]).mean(); }
  double value() const { return w.item<double>(); }

  StepOutput training_step(Batch& batch, std::int64_t batch_idx) override {
    ++training_steps;
    return step ? step(*this, batch, batch_idx) : StepOutput(loss(batch));
  }
  StepOutput validation_step(Batch& batch, std::int64_t batch_idx, std::int64_t loader) override {
    ++validation_steps;
    if (eval_step) {
      eval_step(*this, batch, batch_idx, loader);
    } else {
      log("val_loss", loss(batch));
    }
    return {};
  }
  StepOutput test_step(Batch& batch, std::int64_t batch_idx, std::int64_t loader) override {
    if (eval_step) {
      eval_step(*this, batch, batch_idx, loader);
    } else {
      log("test_loss", loss(batch));
    }
    return {};
  }
  at::Tensor predict_step(Batch& batch, std::int64_t, std::int64_t) override {
    return w * batch.tensors[0];
  }
  OptimizerConfigs configure_optimizers() override {
    return optimizers ? optimizers(*this) : SGD::make(*this, {.lr = options_.lr});
  }
  BatchAction on_train_batch_start(Batch& batch, std::int64_t batch_idx) override {
    return batch_start ? batch_start(batch, batch_idx) : BatchAction::kContinue;
  }

  at::Tensor w;
  Step step;
  EvalStep eval_step;
  std::function<OptimizerConfigs(Toy&)> optimizers;
  std::function<BatchAction(Batch&, std::int64_t)> batch_start;
  int training_steps = 0;
  int validation_steps = 0;

 private:
  ToyOptions options_;
};

/// Where validations ran, as "batch/step", both counted over all epochs.
class ValidationLog : public Callback {
 public:
  void on_validation_end(Context& context, Module&) override {
    if (context.sanity_checking()) return;
    batches.push_back(context.progress().total_batches);
    steps.push_back(context.progress().global_step);
  }
  std::vector<std::int64_t> batches, steps;
};

/// Options of a trainer that says nothing, writes nothing and leaves signals alone.
inline TrainerOptions quiet(std::int64_t max_epochs = 1, std::shared_ptr<LogSink> sink = {}) {
  if (sink == nullptr) sink = std::make_shared<CapturingSink>();
  return {.loggers = std::vector<std::shared_ptr<Logger>>{},
          .enable_checkpointing = false,
          .enable_progress_bar = false,
          .enable_model_summary = false,
          .max_epochs = max_epochs,
          .signals = SignalHandling::kNone,
          .log_sink = std::move(sink)};
}

/// The message of the exception of type E that `action` throws; a failure if it throws none.
template <class E, class Action>
std::string message_of(const Action& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "an exception of another type was thrown: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline ::testing::AssertionResult contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << text << "\" does not contain \"" << part << "\"";
}

}  // namespace fulmen
