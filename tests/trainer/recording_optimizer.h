#pragma once

#include <fulmen/fulmen.h>

#include <optional>
#include <string>
#include <vector>

namespace fulmen {

using Index = std::int64_t;

/// The events of a run, in the grammar of tests/parity/README.md.
class Events {
 public:
  void add(const char* who, const char* hook) { list_.push_back(std::string(who) + "." + hook); }
  void add(const char* who, const char* hook, Index index) {
    list_.push_back(std::string(who) + "." + hook + "(" + std::to_string(index) + ")");
  }
  void add(const char* who, const char* hook, Stage stage) {
    list_.push_back(std::string(who) + "." + hook + "(" + std::string(to_string(stage)) + ")");
  }
  void add_line(std::string line) { list_.push_back(std::move(line)); }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

class RecordingOptimizer final : public Optimizer {
 public:
  RecordingOptimizer(Events& events, std::shared_ptr<Optimizer> inner, std::optional<Index> index)
      : events_(events), inner_(std::move(inner)), index_(index) {}
  std::string_view name() const override { return inner_->name(); }
  std::size_t group_count() const override { return inner_->group_count(); }
  std::span<const NamedParameter> parameters(std::size_t group) const override {
    return inner_->parameters(group);
  }
  std::vector<std::string> hyperparameter_names(std::size_t group) const override {
    return inner_->hyperparameter_names(group);
  }
  double hyperparameter(std::size_t group, std::string_view key) const override {
    return inner_->hyperparameter(group, key);
  }
  void set_hyperparameter(std::size_t group, std::string_view key, double value) override {
    inner_->set_hyperparameter(group, key, value);
  }
  at::Tensor step(const Closure& closure) override {
    auto loss = inner_->step(closure);
    record("step");
    return loss;
  }
  bool reevaluates() const override { return inner_->reevaluates(); }
  void zero_grad() override { inner_->zero_grad(); }
  void bind(const std::function<void(NamedParameter&)>& bind) override { inner_->bind(bind); }
  StateDict state_dict() const override { return inner_->state_dict(); }
  void check_state(const StateDict& state, std::vector<std::string>& problems) const override {
    inner_->check_state(state, problems);
  }
  void load_state_dict(const StateDict& state) override {
    inner_->load_state_dict(state);
    record("load_state_dict");
  }

 private:
  void record(const char* hook) {
    index_ ? events_.add("optimizer", hook, *index_) : events_.add("optimizer", hook);
  }

  Events& events_;
  std::shared_ptr<Optimizer> inner_;
  std::optional<Index> index_;
};

class RecordingScheduler final : public LRScheduler {
 public:
  RecordingScheduler(Events& events, std::shared_ptr<LRScheduler> inner)
      : events_(events), inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  void step(std::optional<double> metric) override {
    inner_->step(metric);
    events_.add("scheduler", "step");
  }
  bool needs_metric() const override { return inner_->needs_metric(); }
  StateDict state_dict() const override { return inner_->state_dict(); }
  void load_state_dict(const StateDict& state) override {
    events_.add("scheduler", "load_state_dict");
    inner_->load_state_dict(state);
  }

 private:
  Events& events_;
  std::shared_ptr<LRScheduler> inner_;
};

}  // namespace fulmen
