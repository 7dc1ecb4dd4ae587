#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "fulmen/core/metrics/metric_store.h"
#include "fulmen/core/support/error.h"

namespace fulmen {

/// Calls a MetricStore in the order in which the trainer does.
class MetricRun {
 public:
  explicit MetricRun(MetricStore& store) : store_(store) { store_.begin_run(); }

  void start(MetricPhase phase) {
    store_.begin_phase(phase);
    store_.begin_epoch();
  }
  /// Begins a batch with this many rows; the hook runs.
  void enter(HookPoint hook, std::int64_t rows) {
    batch_ = {torch::empty({rows, 2})};
    store_.set_batch(BatchView(batch_));
    store_.set_hook(hook);
  }
  template <class Body>
  void batch(HookPoint hook, std::int64_t rows, const Body& body) {
    enter(hook, rows);
    body();
    leave();
  }
  template <class B, class Body>
  void batch_of(HookPoint hook, B& batch, const Body& body) {
    store_.set_batch(BatchView(batch));
    store_.set_hook(hook);
    body();
    leave();
  }
  template <class Body>
  void loader_batch(HookPoint hook,
                    std::int64_t loader,
                    std::int64_t loaders,
                    std::int64_t rows,
                    const Body& body) {
    batch_ = {torch::empty({rows, 2})};
    store_.set_batch(BatchView(batch_), loader, loaders);
    store_.set_hook(hook);
    body();
    leave();
  }

 private:
  void leave() {
    store_.set_hook(HookPoint::kOutside);
    store_.commit();
  }

  MetricStore& store_;
  std::vector<torch::Tensor> batch_;
};

/// Empty if `action` throws an E whose text holds all of `parts`; else what is wrong.
template <class E, class Action, class... Parts>
std::string missing_in_error(const Action& action, const Parts&... parts) {
  try {
    action();
  } catch (const E& error) {
    const std::string text = error.what();
    std::string missing;
    ((missing +=
      text.find(parts) == std::string::npos ? std::string("no '") + parts + "' in: " + text : ""),
     ...);
    return missing;
  }
  return "nothing was thrown";
}

}  // namespace fulmen

#define EXPECT_THROW_TEXT(statement, type, ...) \
  EXPECT_EQ((::fulmen::missing_in_error<type>([&] { statement; }, __VA_ARGS__)), "")
