// Training on a mesh equals training in one process: raw gradients of every step and the weights
// after it, in double precision, with other samples on each data rank and other parts of them on
// each model rank.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/strategies/strip_model.h"

namespace fulmen {
namespace {

/// Sums of at most some 1,000 terms of at most about 10, each rounded to a relative 2^-53: below
/// 1e-12. Momentum and clipping carry that over 5 steps without growing it by more than 10 times.
constexpr double kTolerance = 1e-11;

std::vector<MeshAxis> mesh(int data, int model) {
  return {{.name = "data", .size = data}, {.name = "model", .size = model}};
}

struct Shape {
  int data;
  int model;
};
void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.data << "x" << shape.model;
}

class Equivalence : public testing::TestWithParam<Shape> {
 protected:
  /// Trains both ways; the one process has no strategy, no axis and no collectives.
  static void compare(StripRun run, double tolerance = kTolerance) {
    run.mesh = {};
    const auto expected = train_strips(run);
    ASSERT_FALSE(expected.gradients.empty());
    const auto& shape = GetParam();
    for (const auto sharing : {Sharing::kMark, Sharing::kHolder, Sharing::kCopy}) {
      SCOPED_TRACE("sharing " + std::to_string(static_cast<int>(sharing)));
      run.mesh = mesh(shape.data, shape.model);
      run.model.sharing = sharing;
      expect_near(train_strips(run), expected, tolerance);
    }
  }
};

TEST_P(Equivalence, OfPlainSteps) {
  compare({});
}

TEST_P(Equivalence, OfClippedSteps) {
  compare({.trainer = {.gradient_clip_val = 0.3}});
}

TEST_P(Equivalence, OfAccumulatedStepsWithATail) {
  // 60 samples are 5 micro-batches: windows of 2, 2 and 1.
  compare({.trainer = {.max_epochs = 2, .accumulate_grad_batches = 2, .gradient_clip_val = 0.3}});
}

TEST_P(Equivalence, OfAnEpochWhoseLastSamplesAreFewerThanRanks) {
  // 49 samples: the last micro-batch has one, on one data rank.
  compare({.samples = 49, .trainer = {.max_epochs = 2}});
  compare({.samples = 49, .trainer = {.max_epochs = 2, .accumulate_grad_batches = 2}});
}

TEST_P(Equivalence, OfAWeightThatActsTwice) {
  compare({.model = {.used_twice = true}});
}

TEST_P(Equivalence, OfAWeightThatIsTiedInsideARank) {
  compare({.trainer = {.gradient_clip_val = 0.3}, .model = {.tied = true}});
}

TEST_P(Equivalence, OfReentrantCheckpointing) {
  compare({.trainer = {.accumulate_grad_batches = 2},
           .model = {.used_twice = true, .recomputed = true}});
}

TEST_P(Equivalence, OfAdam) {
  // Adam divides by the root of the squares: a relative error of a gradient becomes one of a step.
  compare({.trainer = {.max_epochs = 2}, .model = {.optimizer = Choice::kAdam}});
}

TEST_P(Equivalence, OfSmallBuckets) {
  compare({.trainer = {.max_epochs = 2, .accumulate_grad_batches = 2},
           .reducer = {.bucket_cap_bytes = 1, .first_bucket_cap_bytes = 1}});
}

INSTANTIATE_TEST_SUITE_P(
    Meshes,
    Equivalence,
    testing::Values(Shape{1, 2}, Shape{2, 1}, Shape{1, 3}, Shape{3, 1}, Shape{2, 2}, Shape{1, 4}),
    [](const auto& shape) {
      return std::to_string(shape.param.data) + "x" + std::to_string(shape.param.model);
    });

TEST(Bfloat16, SumsInFloat32AreCloserToTheTruthThanBfloat16) {
  StripRun run{
      .mesh = mesh(2, 2), .trainer = {.max_steps = 1}, .model = {.dtype = torch::kBFloat16}};
  run.trainer.precision = Precision::kBf16True;
  run.reducer.reduce_dtype = torch::kFloat;
  const auto wide = train_strips(run);
  run.mesh = {};
  run.model.dtype = torch::kDouble;
  run.trainer.precision = Precision::k64True;
  const auto exact = train_strips(run);
  for (const auto& [name, gradient] : wide.gradients[0]) {
    const auto& truth = exact.gradients[0].at(name);
    // A chain of about 10 operations, each rounded to a relative 2^-9, on terms of up to 4 times
    // the result.
    const double bound = 40 * 0x1p-9 * std::max(1.0, truth.abs().max().item<double>());
    EXPECT_LE((gradient.to(torch::kDouble) - truth).abs().max().item<double>(), bound) << name;
  }
}

}  // namespace
}  // namespace fulmen
