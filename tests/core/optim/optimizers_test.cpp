#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fulmen/core/optim/adagrad.h"
#include "fulmen/core/optim/adam.h"
#include "fulmen/core/optim/rmsprop.h"
#include "fulmen/core/optim/sgd.h"
#include "fulmen/core/support/error.h"
#include "tests/core/optim/golden.h"

namespace fulmen {
namespace {

using Object = boost::json::object;

template <class Options>
Options adam_options(const Object& o) {
  const auto betas = numbers(o.at("betas"));
  return {.lr = number(o, "lr"),
          .beta1 = betas[0],
          .beta2 = betas[1],
          .eps = number(o, "eps"),
          .weight_decay = number(o, "weight_decay"),
          .amsgrad = o.at("amsgrad").as_bool(),
          .maximize = o.at("maximize").as_bool()};
}

std::shared_ptr<Optimizer> make_sgd(Parameters parameters, const Object& o) {
  return SGD::make(std::move(parameters),
                   {.lr = number(o, "lr"),
                    .momentum = number(o, "momentum"),
                    .dampening = number(o, "dampening"),
                    .weight_decay = number(o, "weight_decay"),
                    .nesterov = o.at("nesterov").as_bool(),
                    .maximize = o.at("maximize").as_bool()});
}

std::shared_ptr<Optimizer> make_adagrad(Parameters parameters, const Object& o) {
  return Adagrad::make(std::move(parameters),
                       {.lr = number(o, "lr"),
                        .lr_decay = number(o, "lr_decay"),
                        .weight_decay = number(o, "weight_decay"),
                        .initial_accumulator_value = number(o, "initial_accumulator_value"),
                        .eps = number(o, "eps"),
                        .maximize = o.at("maximize").as_bool()});
}

std::shared_ptr<Optimizer> make_rmsprop(Parameters parameters, const Object& o) {
  return RMSprop::make(std::move(parameters),
                       {.lr = number(o, "lr"),
                        .alpha = number(o, "alpha"),
                        .eps = number(o, "eps"),
                        .weight_decay = number(o, "weight_decay"),
                        .momentum = number(o, "momentum"),
                        .centered = o.at("centered").as_bool(),
                        .maximize = o.at("maximize").as_bool()});
}

std::shared_ptr<Optimizer> make_optimizer(const std::string& kind,
                                          Parameters parameters,
                                          const Object& o) {
  if (kind == "SGD") return make_sgd(std::move(parameters), o);
  if (kind == "Adagrad") return make_adagrad(std::move(parameters), o);
  if (kind == "RMSprop") return make_rmsprop(std::move(parameters), o);
  if (kind == "Adam") return Adam::make(std::move(parameters), adam_options<AdamOptions>(o));
  return AdamW::make(std::move(parameters), adam_options<AdamWOptions>(o));
}

void run_golden_case(const Object& c) {
  const auto& shapes = c.at("shapes").as_object();
  std::vector<at::Tensor> parameters, a, b;
  for (const char* key : {"p0", "p1"}) {
    parameters.push_back(tensor_of(c.at("initial").as_object(), key, shapes).requires_grad_());
    a.push_back(tensor_of(c.at("a").as_object(), key, shapes));
    b.push_back(tensor_of(c.at("b").as_object(), key, shapes));
  }
  auto optimizer = make_optimizer(text(c.at("optimizer")), parameters, c.at("options").as_object());
  const auto& steps = c.at("after_each_step").as_array();
  for (std::size_t step = 0; step < steps.size(); ++step) {
    for (std::size_t i = 0; i < 2; ++i) {
      parameters[i].mutable_grad() = (a[i] * parameters[i] + b[i]).detach();
    }
    optimizer->step();
    for (std::size_t i = 0; i < 2; ++i) {
      const auto expected = tensor_of(steps[step].as_object(), i == 0 ? "p0" : "p1", shapes);
      // A step rounds about 10 times by 1.1e-16, and momentum amplifies that by at most 10: 2e-13
      // after 20 steps.
      ASSERT_TRUE(at::allclose(parameters[i], expected, 1e-12, 1e-12))
          << "step " << step << "\n"
          << (parameters[i] - expected);
    }
  }
}

TEST(Optimizers, EqualPyTorchInEveryGoldenCase) {
  const auto cases = golden_cases("optimizers.json");
  ASSERT_GE(cases.size(), 31u);
  for (const auto& value : cases) {
    SCOPED_TRACE(text(value.at("name")));
    run_golden_case(value.as_object());
  }
}

// One of each, with every kind of state in use.
std::vector<std::shared_ptr<Optimizer>> all_optimizers(const Parameters& p) {
  return {AdamW::make(p, {.lr = 0.1, .amsgrad = true}),
          Adam::make(p, {.lr = 0.1, .amsgrad = true}),
          SGD::make(p, {.lr = 0.1, .momentum = 0.9, .dampening = 0.1}),
          Adagrad::make(p, {.lr = 0.1}),
          RMSprop::make(p, {.lr = 0.1, .momentum = 0.9, .centered = true})};
}

void set_gradient(const at::Tensor& parameter, double scale) {
  parameter.mutable_grad() = (parameter.detach() * scale).cos();
}

TEST(Optimizers, StepATensorThatIsGivenTwiceOnce) {
  for (std::size_t kind = 0; kind < 5; ++kind) {
    auto once = parameter({1, 2});
    auto twice = parameter({1, 2});
    auto expected = all_optimizers({once})[kind];
    auto optimizer = all_optimizers({twice, twice})[kind];
    SCOPED_TRACE(std::string(optimizer->name()));
    EXPECT_EQ(optimizer->parameters(0).size(), 1u);
    for (int step = 0; step < 3; ++step) {
      set_gradient(once, 2);
      set_gradient(twice, 2);
      expected->step();
      optimizer->step();
    }
    EXPECT_TRUE(at::equal(once, twice));
  }
}

TEST(Optimizers, StepEveryDtypeOfOneGroup) {
  // Narrow kernels round once per element and step: half of the dtype's spacing at 2, and a few
  // more for its state.
  const std::vector<std::pair<at::ScalarType, double>> dtypes = {
      {at::kDouble, 1e-12}, {at::kFloat, 3e-6}, {at::kBFloat16, 5e-2}, {at::kHalf, 6e-3}};
  for (std::size_t kind = 0; kind < 5; ++kind) {
    auto reference = parameter({1.5, -0.5, 0.75});
    std::vector<at::Tensor> mixed;
    for (const auto& [dtype, tolerance] : dtypes)
      mixed.push_back(reference.detach().to(dtype, false, true).requires_grad_());
    auto expected = all_optimizers({reference})[kind];
    auto optimizer = all_optimizers(mixed)[kind];
    SCOPED_TRACE(std::string(optimizer->name()));
    for (int step = 0; step < 3; ++step) {
      set_gradient(reference, 2);
      for (const auto& tensor : mixed)
        tensor.mutable_grad() = reference.grad().to(tensor.scalar_type());
      expected->step();
      optimizer->step();
    }
    for (std::size_t i = 0; i < mixed.size(); ++i) {
      EXPECT_TRUE(at::allclose(mixed[i].to(at::kDouble), reference, 0, dtypes[i].second))
          << dtypes[i].first << mixed[i] << reference;
    }
  }
}

TEST(Optimizers, LeaveParametersWithoutGradientAndGiveThemStateWhenTheirFirstGradientComes) {
  for (std::size_t kind = 0; kind < 5; ++kind) {
    auto early = parameter({1, 2});
    auto late = parameter({1, 2});
    auto alone = parameter({1, 2});
    auto optimizer = all_optimizers({early, late})[kind];
    auto expected = all_optimizers({alone})[kind];
    SCOPED_TRACE(std::string(optimizer->name()));
    for (int step = 0; step < 2; ++step) {
      set_gradient(early, 2);
      optimizer->step();
      optimizer->zero_grad();
    }
    EXPECT_TRUE(at::equal(late, alone));
    for (int step = 0; step < 3; ++step) {
      for (const auto& tensor : {early, late, alone}) set_gradient(tensor, 2);
      optimizer->step();
      expected->step();
    }
    EXPECT_TRUE(at::equal(late, alone));
    late.mutable_grad().reset();
    const auto before = late.detach().clone();
    optimizer->step();
    EXPECT_TRUE(at::equal(late, before));
  }
}

TEST(Optimizers, StepTransposedAndEmptyParameters) {
  for (std::size_t kind = 0; kind < 5; ++kind) {
    auto plain = torch::arange(6, at::kDouble).reshape({2, 3}).clone().requires_grad_();
    auto transposed =
        torch::arange(6, at::kDouble).reshape({2, 3}).t().contiguous().t().requires_grad_();
    auto empty = torch::empty({0, 3}, at::kDouble).requires_grad_();
    ASSERT_FALSE(transposed.is_contiguous());
    auto expected = all_optimizers({plain})[kind];
    auto optimizer = all_optimizers({transposed, empty})[kind];
    SCOPED_TRACE(std::string(optimizer->name()));
    for (int step = 0; step < 3; ++step) {
      for (const auto& tensor : {plain, transposed, empty}) set_gradient(tensor, 2);
      // Laid out unlike the parameter in one step: PyTorch's fused optimizers mix up the elements
      // then.
      if (step == 1) transposed.mutable_grad() = transposed.grad().contiguous();
      expected->step();
      optimizer->step();
    }
    EXPECT_TRUE(at::equal(plain, transposed)) << plain << transposed;
  }
}

TEST(Optimizers, CallTheClosureWithGradientsOnAndReturnItsLoss) {
  auto w = parameter({3});
  auto optimizer = SGD::make({w}, {.lr = 0.5});
  const at::NoGradGuard no_grad;
  const auto loss = optimizer->step([&] {
    optimizer->zero_grad();
    auto value = (w * w).sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(loss.item<double>(), 9.0);
  EXPECT_EQ(w.item<double>(), 0.0);  // 3 - 0.5 * 6
}

TEST(Optimizers, ZeroGradMakesGradientsUndefined) {
  auto w = parameter({3});
  (w * w).sum().backward();
  auto optimizer = SGD::make({w});
  optimizer->zero_grad();
  EXPECT_FALSE(w.grad().defined());
}

TEST(Optimizers, BumpTheVersionSoThatAStaleGraphIsDetected) {
  auto w = parameter({3});
  auto loss = (w * w).sum();
  w.mutable_grad() = at::ones_like(w);
  AdamW::make({w})->step();
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Optimizers, RefuseASparseGradientByName) {
  auto embedding = torch::nn::Embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  auto optimizer = AdamW::make(embedding);
  embedding->forward(torch::tensor({1, 2})).sum().backward();
  const auto message = message_of<TrainingError>([&] { optimizer->step(); });
  EXPECT_TRUE(contains(message, "AdamW: the gradient of weight is not dense")) << message;
}

TEST(Optimizers, GroupsKeepTheirOwnHyperparameters) {
  auto slow = parameter({1});
  auto fast = parameter({1});
  auto optimizer =
      SGD::make({{.parameters = {slow}, .lr = 0.1}, {.parameters = {fast}}}, {.lr = 0.5});
  for (const auto& w : {slow, fast}) w.mutable_grad() = at::ones_like(w);
  optimizer->step();
  EXPECT_DOUBLE_EQ(slow.item<double>(), 0.9);
  EXPECT_DOUBLE_EQ(fast.item<double>(), 0.5);
  optimizer->set_hyperparameter(1, "lr", 0.25);
  optimizer->step();
  EXPECT_DOUBLE_EQ(slow.item<double>(), 0.8);
  EXPECT_DOUBLE_EQ(fast.item<double>(), 0.25);
}

TEST(Optimizers, AValueSetToItsDefaultInAGroupIsNotReplacedByTheCommonOne) {
  auto w = parameter({1});
  auto optimizer = AdamW::make({{.parameters = {w}, .lr = 1e-3}}, {.lr = 0.5});
  EXPECT_EQ(optimizer->hyperparameter(0, "lr"), 1e-3);
}

TEST(Optimizers, AnOptionSwitchedOnLaterWorks) {
  for (const char* option : {"momentum", "centered"}) {
    auto w = parameter({1, 2});
    auto optimizer = RMSprop::make({w}, {.lr = 0.1});
    set_gradient(w, 1);
    optimizer->step();
    optimizer->set_hyperparameter(0, option, 1);
    EXPECT_NO_THROW(optimizer->step());
    StateDict state = optimizer->state_dict();
    EXPECT_NO_THROW(optimizer->load_state_dict(state));
  }
  auto w = parameter({1, 2});
  auto optimizer = SGD::make({w}, {.lr = 0.1});
  w.mutable_grad() = at::ones_like(w);
  optimizer->step();
  optimizer->set_hyperparameter(0, "momentum", 0.5);
  optimizer->step();
  optimizer->step();
  EXPECT_NEAR(w[0].item<double>(), 1 - 0.1 - 0.1 - 0.15, 1e-15);
}

TEST(Optimizers, RefuseValuesOutOfRangeByNameAndValue) {
  auto w = parameter({1});
  const std::vector<std::pair<std::string, std::function<void()>>> cases = {
      {"AdamW: lr must be at least 0 and finite, got -1", [&] { AdamW::make({w}, {.lr = -1}); }},
      {"AdamW: lr must be at least 0 and finite, got nan",
       [&] { AdamW::make({w}, {.lr = std::nan("")}); }},
      {"Adam: beta1 must be in [0, 1), got 1", [&] { Adam::make({w}, {.beta1 = 1}); }},
      {"Adam: eps must be at least 0", [&] { Adam::make({w}, {.eps = -1e-8}); }},
      {"SGD: nesterov needs a momentum above 0", [&] { SGD::make({w}, {.nesterov = true}); }},
      {"SGD: momentum must be at least 0", [&] { SGD::make({w}, {.momentum = -0.1}); }},
      {"RMSprop: alpha must be at least 0", [&] { RMSprop::make({w}, {.alpha = -0.1}); }},
      {"Adagrad: lr_decay must be at least 0", [&] { Adagrad::make({w}, {.lr_decay = -0.1}); }},
      {"AdamW: there is no hyperparameter momentum. Known are: lr beta1",
       [&] { AdamW::make({w})->set_hyperparameter(0, "momentum", 1); }},
      {"AdamW: amsgrad must be 0 or 1, got 0.5",
       [&] { AdamW::make({w})->set_hyperparameter(0, "amsgrad", 0.5); }},
      {"AdamW: there is no group 1; it has 1", [&] { AdamW::make({w})->hyperparameter(1, "lr"); }},
      {"AdamW: there are no parameter groups", [&] { AdamW::make(std::vector<AdamWGroup>{}); }},
      {"is the result of an operation", [&] { AdamW::make({w * 2}); }},
      {"has dtype", [&] { AdamW::make({torch::zeros({2}, at::kComplexFloat)}); }},
      {"are one tensor in two groups",
       [&] {
         AdamW::make({{.parameters = {w}}, {.parameters = {w}}});
       }},
      {"is undefined", [&] { AdamW::make({at::Tensor()}); }},
      {"has gaps or overlaps in memory",
       [&] {
         AdamW::make({torch::zeros({2, 4}).slice(1, 0, 4, 2)});
       }},
  };
  for (const auto& [expected, action] : cases) {
    const auto message = message_of<ConfigError>(action);
    EXPECT_TRUE(contains(message, expected)) << message;
  }
}

TEST(Optimizers, BindNamesAndReplacesParametersBeforeTheFirstStepOnly) {
  auto w = parameter({1, 2, 3});
  auto optimizer = SGD::make({w}, {.lr = 1, .momentum = 0.5});
  auto shard = parameter({2});
  optimizer->bind([&](NamedParameter& p) { p = {.name = "net.weight", .tensor = shard}; });
  shard.mutable_grad() = at::ones_like(shard);
  optimizer->step();
  EXPECT_EQ(shard.item<double>(), 1.0);
  EXPECT_TRUE(optimizer->state_dict().tensors.contains("net.weight/momentum_buffer"));
  EXPECT_THROW(optimizer->bind([](NamedParameter&) {}), ConfigError);
}

}  // namespace
}  // namespace fulmen
