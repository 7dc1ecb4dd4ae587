#include <ATen/autocast_mode.h>

#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

/// Linear, tanh, Linear on y = x0 - x1, and what dtypes its steps saw.
class Regression : public LightningModule<> {
 public:
  Regression() : LightningModule("Regression") {
    torch::manual_seed(11);
    first = register_module("first", torch::nn::Linear(2, 16));
    last = register_module("last", torch::nn::Linear(16, 1));
  }
  at::Tensor compute(const Batch& batch) {
    auto [x, y] = batch.unpack<2>();
    input = x.scalar_type();
    auto hidden = first->forward(x);
    hidden_dtype = hidden.scalar_type();
    default_dtype = c10::typeMetaToScalarType(at::get_default_dtype());
    return torch::mse_loss(last->forward(torch::tanh(hidden)).squeeze(1), y);
  }
  StepOutput training_step(Batch& batch, std::int64_t) override {
    auto loss = compute(batch);
    if (first_loss < 0) first_loss = loss.item<double>();
    last_loss = loss.item<double>();
    return loss;
  }
  StepOutput validation_step(Batch& batch, std::int64_t, std::int64_t) override {
    log("val_loss", compute(batch));
    validated_hidden = hidden_dtype;
    return {};
  }
  void on_before_optimizer_step(Optimizer&) override {
    gradient = first->weight.grad().scalar_type();
  }
  OptimizerConfigs configure_optimizers() override {
    return AdamW::make(*this, {.lr = 0.02, .weight_decay = 0});
  }

  torch::nn::Linear first{nullptr}, last{nullptr};
  c10::ScalarType input{}, hidden_dtype{}, validated_hidden{}, gradient{}, default_dtype{};
  double first_loss = -1, last_loss = -1;
};

struct PrecisionCase {
  Precision precision;
  c10::ScalarType parameter, input, hidden;
};

TEST(PrecisionOption, TrainsAndGivesStepsTheRightDtypes) {
  using c10::ScalarType;
  const PrecisionCase cases[] = {
      {Precision::k64True, ScalarType::Double, ScalarType::Double, ScalarType::Double},
      {Precision::k32True, ScalarType::Float, ScalarType::Float, ScalarType::Float},
      {Precision::kBf16True, ScalarType::BFloat16, ScalarType::BFloat16, ScalarType::BFloat16},
      {Precision::kBf16Mixed, ScalarType::Float, ScalarType::Float, ScalarType::BFloat16},
      {Precision::k16Mixed, ScalarType::Float, ScalarType::Float, ScalarType::Half},
  };
  torch::manual_seed(1);
  const auto x = torch::randn({64, 2});
  DataLoader loader(tensor_dataset({x, x.select(1, 0) - x.select(1, 1)}), {.batch_size = 16});
  for (const auto& expected : cases) {
    auto options = quiet(30);
    options.precision = expected.precision;
    Trainer trainer(options);
    auto module = std::make_shared<Regression>();
    trainer.fit(module, loader, loader);
    const auto name = to_string(expected.precision);
    EXPECT_EQ(module->first->weight.scalar_type(), expected.parameter) << name;
    EXPECT_EQ(module->input, expected.input) << name;
    EXPECT_EQ(module->hidden_dtype, expected.hidden) << name;
    EXPECT_EQ(module->validated_hidden, expected.hidden) << name;
    EXPECT_EQ(module->gradient, expected.parameter) << name;
    EXPECT_EQ(module->default_dtype, expected.parameter) << name;
    EXPECT_LT(module->last_loss, 0.1 * module->first_loss) << name;
    EXPECT_EQ(trainer.progress().global_step + trainer.progress().skipped_steps, 120) << name;
    EXPECT_EQ(c10::typeMetaToScalarType(at::get_default_dtype()), ScalarType::Float) << name;
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU)) << name;
  }
}

TEST(PrecisionOption, IntegersOfABatchStayIntegers) {
  auto options = quiet();
  options.precision = Precision::k64True;
  auto module = std::make_shared<Toy>(ToyOptions{.dtype = torch::kFloat32});
  module->step = [](Toy& toy, Batch& batch, std::int64_t) {
    EXPECT_EQ(batch.tensors[1].scalar_type(), torch::kInt64);
    EXPECT_EQ(batch.tensors[0].scalar_type(), torch::kFloat64);
    EXPECT_EQ(toy.w.scalar_type(), torch::kFloat64);
    return toy.loss(batch);
  };
  Trainer(options).fit(module, std::vector<Batch>{{{torch::tensor({1.0f}), torch::tensor({1})}}});
  EXPECT_EQ(module->training_steps, 1);
}

TEST(PrecisionOption, NamesAreReadAndUnknownOnesRefused) {
  EXPECT_EQ(parse_precision("bf16-mixed"), Precision::kBf16Mixed);
  EXPECT_TRUE(contains(message_of<ConfigError>([] { parse_precision("int8"); }), "int8"));
}

}  // namespace
}  // namespace fulmen
