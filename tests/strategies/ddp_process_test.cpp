// Training on ranks that are processes, which this program starts by training: its trainer starts
// it again for each rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <iostream>
#include <thread>

#include "fulmen/core/checkpoint/safetensors.h"
#include "tests/strategies/strip_model.h"
#include "tests/support/run_program.h"

namespace fulmen {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr std::chrono::seconds kLimit(90);

StripRun run_of(const std::string& mesh) {
  StripRun run{
      .samples = 64,
      .trainer = {.max_epochs = 3, .accumulate_grad_batches = 2, .gradient_clip_val = 0.3}};
  if (mesh != "none") run.mesh = parse_mesh(mesh);
  return run;
}

TensorMap to_tensors(const StripResult& result) {
  TensorMap tensors;
  for (std::size_t step = 0; step < result.gradients.size(); ++step) {
    for (const auto& [name, value] : result.gradients[step])
      tensors["gradient/" + std::to_string(step) + "/" + name] = value;
  }
  for (const auto& [name, value] : result.weights) tensors["weight/" + name] = value;
  return tensors;
}

class Slow final : public Callback {
 public:
  void on_train_batch_end(
      TrainerContext& trainer, ModuleBase&, const StepOutput&, BatchView, std::int64_t) override {
    if (trainer.strategy().topology().rank == 0) {
      std::cout << "batch " << trainer.progress().total_batches << std::endl;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
};

/// --train <mesh> <what> <folder>
int train(const std::string& mesh, const std::string& what, const std::filesystem::path& folder) {
  auto run = run_of(mesh);
  if (what == "slow" || what == "resume") {
    run.trainer.callbacks = {
        ModelCheckpoint::make({.dirpath = folder / "checkpoints", .save_on_interrupt = true})};
    run.trainer.max_epochs = 6;
    if (what == "slow") run.trainer.callbacks.push_back(std::make_shared<Slow>());
    if (what == "resume") run.fit.checkpoint = "last";
  }
  if (what == "whole") run.trainer.max_epochs = 6;
  if (what == "throw_in_hook") {
    const bool second = std::getenv("RANK") != nullptr && std::string(std::getenv("RANK")) == "1";
    if (second) run.model.dtype = c10::ScalarType::Int;  // Linear cannot be made of it.
  }
  const auto result = train_strips_here(run, nullptr);
  if (!result.is_rank_zero) return 0;
  write_safetensors(folder / "result.safetensors", to_tensors(result));
  return result.fit.status == RunStatus::kFinished ? 0 : 9;
}

ProgramOptions program(const std::string& mesh,
                       const std::string& what,
                       const TemporaryFolder& folder) {
  return {.arguments = {own_program(), "--train", mesh, what, folder.path().string()},
          .variables = {{"OMP_NUM_THREADS", "1"}},
          .time_limit = kLimit};
}

TensorMap result_of(const TemporaryFolder& folder) {
  return read_safetensors(folder.path() / "result.safetensors");
}

class Processes : public testing::TestWithParam<const char*> {};

TEST_P(Processes, TrainAsOneProcessDoes) {
  const TemporaryFolder folder;
  const auto result = run_program(program(GetParam(), "plain", folder));
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const auto expected = to_tensors(train_strips_here(run_of("none"), World::single()));
  const auto values = result_of(folder);
  ASSERT_EQ(values.size(), expected.size());
  for (const auto& [name, value] : expected) {
    const auto off = (values.at(name) - value).abs().max().item<double>();
    EXPECT_LE(off, 1e-11) << name;  // As in equivalence_test.cpp.
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes,
                         Processes,
                         testing::Values("data=2,model=1",
                                         "data=1,model=2",
                                         "data=2,model=2",
                                         "data=1,model=3",
                                         "data=3,model=1"),
                         [](const auto& mesh) {
                           std::string name = mesh.param;
                           std::erase_if(name, [](char c) { return c == '=' || c == ','; });
                           return name;
                         });

TEST(Process, ThatThrowsInConfigureShardedModelEndsAll) {
  const TemporaryFolder folder;
  const auto result = run_program(program("data=2,model=1", "throw_in_hook", folder));
  EXPECT_NE(result.exit_code, 0);
  EXPECT_NE(result.exit_code, -1) << "it hung: " << result.output;
  EXPECT_LT(result.seconds.count(), 15);
  EXPECT_THAT(result.output, HasSubstr("[rank 1] error: "));
}

TEST(Process, ThatGetsASignalStopsAllRanksAndResumesBitForBit) {
  const TemporaryFolder unbroken;
  ASSERT_EQ(run_program(program("data=3,model=1", "whole", unbroken)).exit_code, 0);
  const TemporaryFolder folder;
  Program slow(program("data=3,model=1", "slow", folder));
  ASSERT_TRUE(slow.wait_for_output("batch 9\n"));
  ::kill(slow.pid(), SIGTERM);
  const auto stopped = slow.wait();
  EXPECT_EQ(stopped.exit_code, 128 + SIGTERM) << stopped.output;
  const auto resumed = run_program(program("data=3,model=1", "resume", folder));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.output;
  const auto values = result_of(folder);
  int weights = 0;
  for (const auto& [name, value] : result_of(unbroken)) {
    if (!name.starts_with("weight/")) continue;
    EXPECT_TRUE(torch::equal(values.at(name), value)) << name;
    ++weights;
  }
  EXPECT_EQ(weights, 6);
}

}  // namespace
}  // namespace fulmen

int main(int argc, char** argv) {
  if (argc > 4 && std::string(argv[1]) == "--train") {
    try {
      return fulmen::train(argv[2], argv[3], argv[4]);
    } catch (const std::exception& error) {
      std::cerr << "error: " << error.what() << std::endl;
      return 1;
    }
  }
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
