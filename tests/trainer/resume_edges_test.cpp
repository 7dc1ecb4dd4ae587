// Resuming where a run was about to do something else than train the next batch.
#include "tests/trainer/toy.h"

namespace fulmen {
namespace {

TrainerOptions with_folder(const TemporaryDirectory& folder,
                           std::int64_t max_epochs,
                           ModelCheckpointOptions checkpoint = {}) {
  auto options = quiet(max_epochs);
  options.enable_checkpointing = true;
  checkpoint.dirpath = folder.path();
  checkpoint.save_top_k = -1;
  options.callbacks = {ModelCheckpoint::make(checkpoint)};
  return options;
}

TEST(ResumeEdge, WithAValidationDueAtMaxStepsTrainsNoStepMore) {
  TemporaryDirectory folder;
  const auto options = [&] {
    auto made = with_folder(folder, 2, {.every_n_train_steps = 3});
    made.max_epochs.reset();
    made.max_steps = 3;
    made.val_check_interval = every_n_steps(3);
    return made;
  };
  auto whole = std::make_shared<Toy>();
  Trainer first(options());
  first.fit(whole, singles({1, 2, 4, 8, 16}), singles({1}));
  // The checkpoint of step 3 was written before its validation.
  auto resumed = std::make_shared<Toy>();
  Trainer second(options());
  for (const auto& checkpoint : list_checkpoints(folder.path())) {
    second.fit(
        resumed, singles({1, 2, 4, 8, 16}), singles({1}), {.checkpoint = checkpoint.string()});
    EXPECT_EQ(second.progress().global_step, 3) << checkpoint;
    EXPECT_DOUBLE_EQ(resumed->value(), whole->value()) << checkpoint;
  }
}

TEST(ResumeEdge, AfterEarlyStoppingStaysStopped) {
  TemporaryDirectory folder;
  const auto run = [&](const std::string& checkpoint, std::int64_t patience) {
    auto options = with_folder(folder, 10);
    options.callbacks.push_back(EarlyStopping::make({.monitor = "val_loss", .patience = patience}));
    auto module = std::make_shared<Toy>();
    module->eval_step = [](Toy& toy, Batch&, std::int64_t, std::int64_t) {
      toy.log("val_loss", 1.0);
    };
    Trainer trainer(options);
    trainer.fit(module, singles({1}), singles({1}), {.checkpoint = checkpoint});
    return trainer.progress().epoch;
  };
  EXPECT_EQ(run("", 2), 3);
  EXPECT_EQ(run("last", 2), 3);
  EXPECT_EQ(run("last", 4), 5) << "with more patience it goes on";
}

TEST(ResumeEdge, AfterMaxStepsInsideAnEpochKeepsTheEpochsSums) {
  TemporaryDirectory folder;
  const auto module_that_logs = [] {
    auto module = std::make_shared<Toy>();
    module->step = [](Toy& toy, Batch& batch, std::int64_t) -> StepOutput {
      toy.log("x", batch.tensors[0].mean(), {.on_step = false, .on_epoch = true});
      return toy.loss(batch);
    };
    return module;
  };
  auto options = quiet(1);
  options.max_steps = 3;
  Trainer first(options);
  first.fit(module_that_logs(), singles({1, 2, 3, 4, 10}));
  first.save_checkpoint(folder.path() / "stopped");
  Trainer second(quiet(1));
  second.fit(module_that_logs(),
             singles({1, 2, 3, 4, 10}),
             {},
             {.checkpoint = (folder.path() / "stopped").string()});
  EXPECT_DOUBLE_EQ(second.callback_metrics().at("x"), 4);
}

TEST(ResumeEdge, InsideAValidationHasTheBuffersOfItsStart) {
  TemporaryDirectory folder;
  class Accuracy : public Toy {
   public:
    Accuracy() { seen = register_buffer("seen", torch::zeros({}, torch::kFloat64)); }
    StepOutput validation_step(Batch&, std::int64_t batch_idx, std::int64_t) override {
      if (!trainer().sanity_checking()) seen.add_(1);
      if (batch_idx == 1 && stop) stop();
      return {};
    }
    void on_validation_epoch_end() override {
      if (!trainer().sanity_checking()) log("seen_batches", seen);
      seen.zero_();
    }
    at::Tensor seen;
    std::function<void()> stop;
  };
  {
    auto module = std::make_shared<Accuracy>();
    Trainer trainer(with_folder(folder, 1));
    module->stop = [&] {
      if (!trainer.context().sanity_checking()) trainer.request_stop();
    };
    EXPECT_EQ(trainer.fit(module, singles({1}), singles({1, 1, 1})).status,
              RunStatus::kInterrupted);
  }
  Trainer trainer(with_folder(folder, 1));
  trainer.fit(
      std::make_shared<Accuracy>(), singles({1}), singles({1, 1, 1}), {.checkpoint = "last"});
  EXPECT_DOUBLE_EQ(trainer.callback_metrics().at("seen_batches"), 3);
}

TEST(ResumeEdge, InsideAWindowWorksWithAnAccumulationSchedule) {
  TemporaryDirectory folder;
  const auto options = [&] {
    auto made = with_folder(folder, 1);
    made.callbacks.push_back(GradientAccumulationScheduler::make({.scheduling = {{0, 4}}}));
    return made;
  };
  {
    auto module = std::make_shared<Toy>();
    Trainer trainer(options());
    module->step = [&](Toy& toy, Batch& batch, std::int64_t batch_idx) -> StepOutput {
      if (batch_idx == 1) trainer.request_stop();
      return toy.loss(batch);
    };
    trainer.fit(module, singles({1, 2, 3, 6}));
  }
  auto module = std::make_shared<Toy>();
  Trainer trainer(options());
  trainer.fit(module, singles({1, 2, 3, 6}), {}, {.checkpoint = "last"});
  EXPECT_EQ(trainer.progress().global_step, 1);
  EXPECT_DOUBLE_EQ(module->value(), -3);
}

TEST(ResumeEdge, TakesAccumulationFromTheProgramAfterTheOpenWindow) {
  TemporaryDirectory folder;
  {
    auto options = with_folder(folder, 1);
    options.accumulate_grad_batches = 2;
    auto module = std::make_shared<Toy>();
    Trainer trainer(options);
    module->step = [&](Toy& toy, Batch& batch, std::int64_t batch_idx) -> StepOutput {
      if (batch_idx == 0) trainer.request_stop();
      return toy.loss(batch);
    };
    trainer.fit(module, singles({1, 3, 1, 1, 1, 5}));
  }
  auto options = with_folder(folder, 1);
  options.accumulate_grad_batches = 4;
  auto module = std::make_shared<Toy>();
  Trainer trainer(options);
  trainer.fit(module, singles({1, 3, 1, 1, 1, 5}), {}, {.checkpoint = "last"});
  EXPECT_EQ(trainer.progress().global_step, 2);
  EXPECT_DOUBLE_EQ(module->value(), -(2 + 2));
}

TEST(ResumeEdge, WithAnotherSchedulerChangesNothing) {
  TemporaryDirectory folder;
  const auto scheduled = [](bool step) {
    auto module = std::make_shared<Toy>();
    module->optimizers = [step](Toy& toy) -> OptimizerConfigs {
      auto sgd = SGD::make(toy, {.lr = 1});
      std::shared_ptr<LRScheduler> scheduler = ExponentialLR::make(sgd, {.gamma = 0.5});
      if (step) scheduler = StepLR::make(sgd, {.step_size = 1});
      return OptimizerConfig{.optimizer = sgd, .schedulers = {{.scheduler = scheduler}}};
    };
    return module;
  };
  Trainer(with_folder(folder, 1)).fit(scheduled(true), singles({1}));
  auto module = scheduled(false);
  Trainer trainer(with_folder(folder, 2));
  EXPECT_TRUE(contains(message_of<CheckpointError>(
                           [&] { trainer.fit(module, singles({1}), {}, {.checkpoint = "last"}); }),
                       "scheduler 0 of optimizer 0 is StepLR there and ExponentialLR here"));
  EXPECT_DOUBLE_EQ(module->value(), 0);
}

TEST(ManualPrecision, ClipsUnscaledGradientsInEachOfSeveralSteps) {
  class Manual : public Toy {
   public:
    Manual() : Toy({.lr = 1, .w0 = 0, .dtype = torch::kFloat32}) {}
    OptimizationMode optimization_mode() const override { return OptimizationMode::kManual; }
    StepOutput training_step(Batch& batch, std::int64_t) override {
      for (int i = 0; i < 2; ++i) {
        manual_backward(loss(batch));
        norms.push_back(clip_gradients(optimizer(), 1.0).item<double>());
        step_optimizer(0);
        optimizer().zero_grad();
      }
      return {};
    }
    std::vector<double> norms;
  };
  auto options = quiet(1);
  options.precision = Precision::k16Mixed;
  auto module = std::make_shared<Manual>();
  Trainer(options).fit(module, std::vector<Batch>{{{torch::full({1}, 4.0f)}}});
  EXPECT_EQ(module->norms, (std::vector<double>{4, 4}));
  EXPECT_NEAR(module->value(), -2, 1e-5);  // 1e-6 in the clipping coefficient of each step.
}

TEST(ResumeEdge, StartsAnewWithoutACheckpointIfToldSoAndElseGoesOn) {
  TemporaryDirectory folder;
  const auto run = [&](std::int64_t epochs) {
    auto module = std::make_shared<Toy>();
    Trainer trainer(with_folder(folder, epochs, {.save_last = SaveLast::kPointer}));
    trainer.fit(module,
                singles({1, 2}),
                {},
                {.checkpoint = "last", .missing = MissingCheckpoint::kStartAnew});
    return module->training_steps;
  };
  EXPECT_EQ(run(1), 2);
  EXPECT_EQ(run(3), 4);
}

}  // namespace
}  // namespace fulmen
