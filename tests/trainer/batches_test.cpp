#include "tests/trainer/toy.h"

namespace fulmen {

// Outside the anonymous namespace, as a user's batch would be.
struct Sample {
  at::Tensor x;
  at::Tensor y;
  std::string note;
};
void for_each_tensor(Sample& batch, const TensorVisitor& visit) {
  visit(batch.x);
  visit(batch.y);
}

namespace {

// --- Types of batches ---

/// w times the sum of all of x.
template <class B>
class Typed : public LightningModule<B> {
 public:
  using Sum = at::Tensor (*)(B&);
  explicit Typed(Sum sum) : sum_(sum) {
    w = this->register_parameter("w", torch::zeros({}, torch::kFloat64));
  }
  StepOutput training_step(B& batch, std::int64_t) override { return w * sum_(batch); }
  StepOutput validation_step(B& batch, std::int64_t, std::int64_t) override {
    this->log("val", w * sum_(batch));
    return {};
  }
  OptimizerConfigs configure_optimizers() override { return SGD::make(*this, {.lr = 1}); }
  at::Tensor w;

 private:
  Sum sum_;
};

/// Trains on these batches; under 64-true, so every tensor must have been found and converted.
template <class B>
double trained(std::vector<B> batches, at::Tensor (*sum)(B&)) {
  auto options = quiet();
  options.precision = Precision::k64True;
  auto module = std::make_shared<Typed<B>>(sum);
  Trainer(options).fit(module, batches, batches);
  return module->w.template item<double>();
}

at::Tensor checked(const at::Tensor& tensor) {
  EXPECT_EQ(tensor.scalar_type(), torch::kFloat64);
  return tensor.sum();
}

TEST(BatchTypes, AllKindsAreTrainedOn) {
  const auto one = torch::tensor({1.0f, 1.0f});
  const auto two = torch::tensor({2.0f, 2.0f});
  EXPECT_EQ((trained<at::Tensor>({one, two}, [](at::Tensor& batch) { return checked(batch); })),
            -6);
  EXPECT_EQ((trained<std::vector<at::Tensor>>({{one, two}},
                                              [](std::vector<at::Tensor>& batch) {
                                                return checked(batch[0]) + checked(batch[1]);
                                              })),
            -6);
  using Map = std::map<std::string, at::Tensor>;
  EXPECT_EQ((trained<Map>({{{"x", one}, {"y", two}}},
                          [](Map& batch) { return checked(batch["x"]) + checked(batch["y"]); })),
            -6);
  using Tuple = std::tuple<at::Tensor, std::pair<at::Tensor, int>>;
  EXPECT_EQ((trained<Tuple>({Tuple(one, {two, 7})},
                            [](Tuple& batch) {
                              return checked(std::get<0>(batch)) +
                                     checked(std::get<1>(batch).first) + std::get<1>(batch).second;
                            })),
            -13);
  using Example = torch::data::Example<>;
  EXPECT_EQ((trained<Example>(
                {Example(one, two)},
                [](Example& batch) { return checked(batch.data) + checked(batch.target); })),
            -6);
  EXPECT_EQ((trained<Sample>({{one, two, "note"}},
                             [](Sample& batch) {
                               EXPECT_EQ(batch.note, "note");
                               return checked(batch.x) + checked(batch.y);
                             })),
            -6);
}

TEST(BatchTypes, LoadersOfTorchDataWork) {
  using Example = torch::data::Example<>;
  class Numbers : public torch::data::datasets::Dataset<Numbers> {
   public:
    Example get(std::size_t index) override {
      return {torch::full({1}, static_cast<double>(index), torch::kFloat64), torch::zeros({1})};
    }
    torch::optional<std::size_t> size() const override { return 5; }
  };
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Numbers().map(torch::data::transforms::Stack<>()), 2);
  auto module = std::make_shared<Typed<Example>>([](Example& batch) { return batch.data.sum(); });
  Trainer trainer(quiet(2));
  trainer.fit(module, std::move(loader));
  EXPECT_EQ(module->w.item<double>(), -20);
  EXPECT_EQ(trainer.progress().total_batches, 6);
}

// --- predict ---

TEST(Predict, ReturnsEveryBatchOfEveryLoaderInOrder) {
  class Tells : public LightningModule<Batch, std::pair<std::string, at::Tensor>> {
   public:
    std::pair<std::string, at::Tensor> predict_step(Batch& batch,
                                                    std::int64_t batch_idx,
                                                    std::int64_t loader) override {
      EXPECT_FALSE(is_training());
      return {std::to_string(loader) + "." + std::to_string(batch_idx), batch.tensors[0] * 2};
    }
    void on_predict_batch_end(const std::pair<std::string, at::Tensor>& prediction,
                              Batch&,
                              std::int64_t,
                              std::int64_t) override {
      seen += prediction.first + " ";
    }
    std::string seen;
  };
  Trainer trainer(quiet());
  auto module = std::make_shared<Tells>();
  const auto predictions = trainer.predict(module, {singles({1, 2, 3}), singles({4, 5})});
  std::string order;
  double sum = 0;
  for (const auto& [name, value] : predictions) {
    order += name + " ";
    sum = sum * 10 + value.item<double>() / 2;
  }
  EXPECT_EQ(order, "0.0 0.1 0.2 1.0 1.1 ");
  EXPECT_EQ(sum, 12345);
  EXPECT_EQ(module->seen, order);
  EXPECT_TRUE(module->is_training());
}

TEST(Predict, KeepsTheOrderOfADatasetForAnyNumberOfWorkers) {
  for (int workers : {0, 1, 3}) {
    DataLoader loader(tensor_dataset({torch::arange(103, torch::kFloat64)}),
                      {.batch_size = 10, .num_workers = workers});
    auto module = std::make_shared<Toy>(ToyOptions{.w0 = 1});
    const auto rows = torch::cat(Trainer(quiet()).predict(module, loader));
    EXPECT_TRUE(rows.equal(torch::arange(103, torch::kFloat64))) << workers;
  }
}

TEST(Predict, StoppedBeforeItsEndThrowsInPlaceOfGivingAPart) {
  Trainer trainer(quiet());
  class Stops : public Toy {
   public:
    at::Tensor predict_step(Batch& batch, std::int64_t batch_idx, std::int64_t) override {
      if (batch_idx == 1) stop();
      return batch.tensors[0];
    }
    std::function<void()> stop;
  };
  auto module = std::make_shared<Stops>();
  module->stop = [&] { trainer.request_stop(); };
  EXPECT_TRUE(contains(message_of<Interrupted>([&] {
                         trainer.predict(module, singles({1, 2, 3, 4}));
                       }),
                       "predict was stopped before its end"));
  EXPECT_EQ(trainer.predict(std::make_shared<Toy>(), singles({1, 2, 3, 4})).size(), 4u);
}

}  // namespace
}  // namespace fulmen
