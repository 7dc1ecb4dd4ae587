#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "callbacks/text_table.h"
#include "fulmen/callbacks/model_summary.h"
#include "fulmen/callbacks/results_table.h"
#include "fulmen/core/support/error.h"
#include "tests/support/fake_trainer.h"

namespace fulmen {
namespace {

using Results = std::vector<std::map<std::string, double>>;

TEST(ResultsTable, HasOneRowAMetricAndOneColumnALoader) {
  const Results results = {
      {{"acc/dataloader_idx_0", 0.97500002384}, {"loss", 12345.678}},
      {{"acc/dataloader_idx_1", 1}, {"only_here/dataloader_idx_1", std::nan("")}}};
  EXPECT_EQ(format_results_table(Stage::kTest, results),
            "+-------------+--------------+--------------+\n"
            "| Test metric | DataLoader 0 | DataLoader 1 |\n"
            "+-------------+--------------+--------------+\n"
            "| acc         |        0.975 |            1 |\n"
            "| loss        |     12345.68 |              |\n"
            "| only_here   |              |          nan |\n"
            "+-------------+--------------+--------------+");
}

TEST(ResultsTable, IsEmptyWithoutMetrics) {
  EXPECT_EQ(format_results_table(Stage::kValidate, Results{}), "");
  EXPECT_EQ(format_results_table(Stage::kValidate, Results{{}}), "");
}

TEST(TextTable, SeparatesThousands) {
  EXPECT_EQ(detail::with_separators(0), "0");
  EXPECT_EQ(detail::with_separators(999), "999");
  EXPECT_EQ(detail::with_separators(1000), "1,000");
  EXPECT_EQ(detail::with_separators(-123456), "-123,456");
  EXPECT_EQ(detail::with_separators(1234567), "1,234,567");
}

/// Its two layers share one weight of 6 elements.
struct TiedModule : torch::nn::Module {
  TiedModule() : torch::nn::Module("TiedModule") {
    const auto weight = torch::ones({3, 2});
    for (const char* name : {"first", "second"}) {
      const auto layer = register_module(name, std::make_shared<Layer>());
      layer->register_parameter("weight", weight);
    }
    register_module("body", torch::nn::Sequential(torch::nn::Linear(2, 1), torch::nn::ReLU()))
        ->eval();
    register_parameter("scale", torch::ones({5}, torch::kDouble), /*requires_grad=*/false);
  }
  struct Layer : torch::nn::Module {
    Layer() : torch::nn::Module("Layer") {}
  };
};

TEST(ModelSummary, CountsTiedTensorsOnceAndShowsTypesAndModes) {
  EXPECT_EQ(format_model_summary(TiedModule(), {.max_depth = -1}),
            "+------------------+------------+--------+-------+\n"
            "| Name             | Type       | Params | Mode  |\n"
            "+------------------+------------+--------+-------+\n"
            "| (own parameters) | TiedModule |      5 | train |\n"
            "| first            | Layer      |      6 | train |\n"
            "| second           | Layer      |      6 | train |\n"
            "| body             | Sequential |      3 | eval  |\n"
            "| body.0           | Linear     |      3 | eval  |\n"
            "| body.1           | ReLU       |      0 | eval  |\n"
            "+------------------+------------+--------+-------+\n"
            "Trainable params:     9\n"
            "Non-trainable params: 5\n"
            "Total params:         14\n"
            "Size of params:       0.000 MB");
}

TEST(ModelSummary, DepthBoundsTheTable) {
  const auto one = format_model_summary(TiedModule(), {.max_depth = 1});
  EXPECT_NE(one.find("| body "), std::string::npos);
  EXPECT_EQ(one.find("body.0"), std::string::npos);
  const auto none = format_model_summary(TiedModule(), {.max_depth = 0});
  EXPECT_EQ(none.rfind("Trainable params:     9\n", 0), 0u) << none;
  EXPECT_THROW(ModelSummary::make({.max_depth = -2}), ConfigError);
}

TEST(ModelSummary, IsSaidWhenFitStartsByTheFirstRankOnly) {
  FakeTrainer trainer;
  ModelSummary::make()->on_fit_start(trainer, trainer.module());
  EXPECT_EQ(trainer.sink->count(LogLevel::kInfo, "| layer | Linear |      9 |"), 1)
      << trainer.sink->all();
  trainer.fake_strategy.place = {.rank = 1, .local_rank = 1, .world_size = 2};
  ModelSummary::make()->on_fit_start(trainer, trainer.module());
  EXPECT_EQ(trainer.sink->lines.size(), 1u);
}

}  // namespace
}  // namespace fulmen
