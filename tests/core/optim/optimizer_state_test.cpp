#include "fulmen/core/optim/optimizer_state.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fulmen/core/optim/adagrad.h"
#include "fulmen/core/optim/adam.h"
#include "fulmen/core/optim/rmsprop.h"
#include "fulmen/core/optim/sgd.h"
#include "fulmen/core/optim/torch_optimizer.h"
#include "fulmen/core/support/error.h"
#include "tests/core/optim/golden.h"

namespace fulmen {
namespace {

using Make = std::function<std::shared_ptr<Optimizer>(const std::vector<NamedParameter>&)>;

template <class T, class O>
std::shared_ptr<Optimizer> torch_optimizer(const std::vector<NamedParameter>& parameters,
                                           O options) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters) tensors.push_back(parameter.tensor);
  auto made = TorchOptimizer::make(std::make_unique<T>(tensors, options));
  std::size_t next = 0;
  made->bind([&](NamedParameter& parameter) { parameter.name = parameters[next++].name; });
  return made;
}

std::vector<std::pair<std::string, Make>> makers() {
  using P = const std::vector<NamedParameter>&;
  namespace to = torch::optim;
  return {
      {"AdamW", [](P p) { return AdamW::make(p, {.lr = 0.1, .amsgrad = true}); }},
      {"Adam", [](P p) { return Adam::make(p, {.lr = 0.1, .weight_decay = 0.1}); }},
      {"SGD", [](P p) { return SGD::make(p, {.lr = 0.1, .momentum = 0.9, .dampening = 0.1}); }},
      {"Adagrad", [](P p) { return Adagrad::make(p, {.lr = 0.1, .lr_decay = 0.1}); }},
      {"RMSprop",
       [](P p) { return RMSprop::make(p, {.lr = 0.1, .momentum = 0.9, .centered = true}); }},
      {"torch AdamW",
       [](P p) { return torch_optimizer<to::AdamW>(p, to::AdamWOptions(0.1).amsgrad(true)); }},
      {"torch Adam", [](P p) { return torch_optimizer<to::Adam>(p, to::AdamOptions(0.1)); }},
      {"torch SGD",
       [](P p) { return torch_optimizer<to::SGD>(p, to::SGDOptions(0.1).momentum(0.9)); }},
      {"torch Adagrad",
       [](P p) { return torch_optimizer<to::Adagrad>(p, to::AdagradOptions(0.1).lr_decay(0.1)); }},
      {"torch RMSprop",
       [](P p) {
         return torch_optimizer<to::RMSprop>(p,
                                             to::RMSpropOptions(0.1).momentum(0.9).centered(true));
       }},
      {"torch LBFGS",
       [](P p) {
         return torch_optimizer<to::LBFGS>(p, to::LBFGSOptions(0.1).max_iter(3).history_size(2));
       }},
  };
}

std::vector<NamedParameter> fresh_parameters() {
  return {{.name = "a", .tensor = parameter({1.0, -2.0, 0.5})},
          {.name = "b",
           .tensor = torch::tensor({{0.25, -0.75}, {1.5, 3.0}}, at::kFloat).requires_grad_()}};
}

// All of one dtype, as LBFGS needs.
std::vector<NamedParameter> parameters_for(const std::string& kind) {
  auto parameters = fresh_parameters();
  if (kind == "torch LBFGS")
    parameters[1].tensor = parameters[1].tensor.detach().to(at::kDouble).requires_grad_();
  return parameters;
}

void run(Optimizer& optimizer, const std::vector<NamedParameter>& p, int steps) {
  for (int step = 0; step < steps; ++step) {
    optimizer.step([&] {
      optimizer.zero_grad();
      auto loss =
          (p[0].tensor - 2).cos().sum() + (p[1].tensor * 1.3 - 1).cos().sum().to(at::kDouble);
      loss.backward();
      return loss;
    });
  }
}

StateDict deep_copy(const StateDict& state) {
  auto copy = state;
  for (auto& [name, tensor] : copy.tensors) tensor = tensor.clone();
  return copy;
}

void set_to(const std::vector<NamedParameter>& target, const std::vector<NamedParameter>& source) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < target.size(); ++i) target[i].tensor.copy_(source[i].tensor);
}

TEST(OptimizerState, AResumedRunIsBitwiseTheUnbrokenOneAfterAnyStep) {
  for (const auto& [kind, make] : makers()) {
    SCOPED_TRACE(kind);
    for (int before : {0, 1, 4}) {
      auto unbroken = parameters_for(kind);
      auto optimizer = make(unbroken);
      run(*optimizer, unbroken, before);
      auto resumed = parameters_for(kind);
      set_to(resumed, unbroken);
      auto other = make(resumed);
      other->load_state_dict(deep_copy(optimizer->state_dict()));
      run(*optimizer, unbroken, 5);
      run(*other, resumed, 5);
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(at::equal(unbroken[i].tensor, resumed[i].tensor));
      const auto a = optimizer->state_dict();
      const auto b = other->state_dict();
      EXPECT_EQ(a.values, b.values);
      ASSERT_EQ(a.tensors.size(), b.tensors.size());
      for (const auto& [name, tensor] : a.tensors)
        EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name;
    }
  }
}

TEST(OptimizerState, LosingItWouldBeNoticed) {
  for (const auto& [kind, make] : makers()) {
    SCOPED_TRACE(kind);
    auto unbroken = parameters_for(kind);
    auto optimizer = make(unbroken);
    run(*optimizer, unbroken, 4);
    auto restarted = parameters_for(kind);
    set_to(restarted, unbroken);
    auto other = make(restarted);
    run(*optimizer, unbroken, 5);
    run(*other, restarted, 5);
    EXPECT_FALSE(at::equal(unbroken[0].tensor, restarted[0].tensor));
  }
}

TEST(OptimizerState, UsesPyTorchsNamesUnderTheParametersName) {
  auto p = fresh_parameters();
  auto optimizer = AdamW::make(p, {.amsgrad = true});
  run(*optimizer, p, 2);
  const auto state = optimizer->state_dict();
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state.tensors) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"a/exp_avg",
                                      "a/exp_avg_sq",
                                      "a/max_exp_avg_sq",
                                      "a/step",
                                      "b/exp_avg",
                                      "b/exp_avg_sq",
                                      "b/max_exp_avg_sq",
                                      "b/step"}));
  EXPECT_EQ(state.tensors.at("a/step").scalar_type(), at::kFloat);
  EXPECT_EQ(state.tensors.at("a/step").item<float>(), 2.0f);
}

TEST(OptimizerState, SavedHyperparametersWinOverTheConstructor) {  // faults.md 50 and 54
  auto p = fresh_parameters();
  auto saved = SGD::make(p, {.lr = 0.123, .weight_decay = 0.5});
  auto optimizer = SGD::make(p, {.lr = 0.9, .weight_decay = 0.01});
  optimizer->load_state_dict(saved->state_dict());
  EXPECT_EQ(optimizer->hyperparameter(0, "lr"), 0.123);
  EXPECT_EQ(optimizer->hyperparameter(0, "weight_decay"), 0.5);
  p[0].tensor.mutable_grad() = at::zeros_like(p[0].tensor);
  optimizer->step();
  EXPECT_NEAR(p[0].tensor[0].item<double>(), 1 - 0.123 * 0.5, 1e-15);  // The first step uses them.

  auto torch_saved =
      torch_optimizer<torch::optim::SGD>(p, torch::optim::SGDOptions(0.123).weight_decay(0.5));
  auto torch_loaded = torch_optimizer<torch::optim::SGD>(p, torch::optim::SGDOptions(0.9));
  torch_loaded->load_state_dict(torch_saved->state_dict());
  EXPECT_EQ(torch_loaded->hyperparameter(0, "lr"), 0.123);
  EXPECT_EQ(torch_loaded->hyperparameter(0, "weight_decay"), 0.5);
}

TEST(OptimizerState, LoadingAHundredTimesKeepsTheSizeOfTheState) {  // faults.md 55
  for (const auto& [kind, make] : makers()) {
    SCOPED_TRACE(kind);
    auto p = parameters_for(kind);
    auto optimizer = make(p);
    run(*optimizer, p, 4);
    const auto state = deep_copy(optimizer->state_dict());
    std::size_t before = 0, after = 0;
    for (const auto& [name, tensor] : state.tensors) before += tensor.nbytes();
    for (int i = 0; i < 100; ++i) optimizer->load_state_dict(state);
    const auto loaded = optimizer->state_dict();
    for (const auto& [name, tensor] : loaded.tensors) after += tensor.nbytes();
    EXPECT_EQ(loaded.tensors.size(), state.tensors.size());
    EXPECT_EQ(after, before);
    // A second optimizer does not share memory with what it was loaded from.
    for (const auto& [name, tensor] : loaded.tensors) {
      EXPECT_NE(tensor.data_ptr(), state.tensors.at(name).data_ptr()) << name;
    }
  }
}

TEST(OptimizerState, AnOptionThatAnOldFileLacksKeepsItsValueAndIsReported) {  // faults.md 56
  auto p = fresh_parameters();
  auto state = AdamW::make(p, {.lr = 0.25})->state_dict();
  auto& group = state.values["groups"].as_array()[0].as_object();
  group["hyperparameters"].as_object().erase("maximize");
  auto optimizer = AdamW::make(p);
  EXPECT_EQ(missing_hyperparameters(*optimizer, state),
            std::vector<std::string>{"maximize of group 0"});
  optimizer->load_state_dict(state);
  EXPECT_EQ(optimizer->hyperparameter(0, "lr"), 0.25);
  EXPECT_EQ(optimizer->hyperparameter(0, "maximize"), 0);
}

TEST(OptimizerState, AFileWithoutStateOfAParameterThatNeverHadAGradientIsValid) {
  auto p = fresh_parameters();
  auto optimizer = AdamW::make(p);
  p[0].tensor.mutable_grad() = at::ones_like(p[0].tensor);
  optimizer->step();
  auto other = AdamW::make(p);
  EXPECT_NO_THROW(other->load_state_dict(optimizer->state_dict()));
  EXPECT_EQ(other->state_dict().tensors.size(), 3u);
}

TEST(OptimizerState, CheckListsAllProblemsAndLoadChangesNothing) {
  for (const auto& [kind, make] : makers()) {
    if (kind == "torch LBFGS" || kind == "SGD" || kind == "torch SGD") continue;
    SCOPED_TRACE(kind);
    auto p = fresh_parameters();
    auto optimizer = make(p);
    run(*optimizer, p, 2);
    auto bad = deep_copy(optimizer->state_dict());
    const std::string first = kind.ends_with("Adagrad")   ? "sum"
                              : kind.ends_with("RMSprop") ? "square_avg"
                                                          : "exp_avg";
    bad.tensors.erase("a/" + first);
    bad.tensors["b/" + first] = torch::zeros({3}, at::kDouble);
    bad.tensors["c/" + first] = torch::zeros({3});
    bad.tensors["a/nonsense"] = torch::zeros({3});
    auto& group = bad.values["groups"].as_array()[0].as_object();
    group["parameters"].as_array().emplace_back("c");
    group["hyperparameters"].as_object()["lr"] = "high";
    group["hyperparameters"].as_object()["speed"] = 1;

    std::vector<std::string> problems;
    optimizer->check_state(bad, problems);
    std::string all;
    for (const auto& problem : problems) all += problem + "\n";
    for (const char* part : {"missing tensor",
                             "unexpected tensor",
                             "nonsense",
                             "c/",
                             "shape [3]",
                             "dtype Double",
                             "speed",
                             "lr",
                             "parameter c"}) {
      EXPECT_TRUE(contains(all, part)) << part << "\n" << all;
    }
    const auto before = deep_copy(optimizer->state_dict());
    EXPECT_THROW(optimizer->load_state_dict(bad), CheckpointError);
    const auto after = optimizer->state_dict();
    EXPECT_EQ(before.values, after.values);
    ASSERT_EQ(before.tensors.size(), after.tensors.size());
    for (const auto& [name, tensor] : before.tensors)
      EXPECT_TRUE(at::equal(tensor, after.tensors.at(name)));
  }
}

TEST(OptimizerState, OfAnotherClassGroupCountOrValueIsRefused) {
  auto p = fresh_parameters();
  auto optimizer = AdamW::make(p);
  const auto refused = [&](const StateDict& state, const std::string& part) {
    const auto message = message_of<CheckpointError>([&] { optimizer->load_state_dict(state); });
    EXPECT_TRUE(contains(message, part)) << message;
  };
  refused(Adam::make(p)->state_dict(), "state of Adam, not of AdamW");
  refused(AdamW::make({{.parameters = {p[0].tensor}}, {.parameters = {p[1].tensor}}})->state_dict(),
          "2 parameter groups, the optimizer has 1");
  refused(StateDict{}, "has no parameter groups");
  auto state = optimizer->state_dict();
  state.values["groups"].as_array()[0].as_object()["hyperparameters"].as_object()["beta1"] = 1.5;
  refused(state, "beta1 must be in [0, 1), got 1.5");
  state.values["groups"].as_array()[0] = 7;
  refused(state, "group 0 of the file is not an object");
}

}  // namespace
}  // namespace fulmen
