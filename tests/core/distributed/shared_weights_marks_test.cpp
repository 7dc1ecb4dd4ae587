#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>
#include <thread>

#include "fulmen/core/distributed/shared_weights.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/support/sanitizers.h"

namespace fulmen {
namespace {

using testing::error_text;
using testing::expect_parts;

TEST(Marks, StayWithTheTensorAndNotItsCopies) {
  const auto weight = torch::ones({2, 3});
  const auto handle = weight;
  mark_as_shared(weight, "model");
  mark_placement(weight, "data", replicated());
  EXPECT_EQ(placement_marks(handle), (PlacementMarks{{"data", replicated()}, {"model", shared()}}));
  EXPECT_TRUE(placement_marks(weight.clone()).empty());
  EXPECT_TRUE(placement_marks(weight.detach()).empty());
  EXPECT_TRUE(placement_marks({}).empty());
}

TEST(Marks, StayThroughToDtypeAndSetData) {
  torch::nn::Linear linear(2, 3);
  mark_as_shared(*linear, "model");
  linear->to(torch::kDouble);
  EXPECT_EQ(linear->weight.scalar_type(), torch::kDouble);
  linear->bias.set_data(torch::zeros({3}, torch::kDouble));
  for (const auto& parameter : linear->parameters()) {
    EXPECT_EQ(placement_marks(parameter), (PlacementMarks{{"model", shared()}}));
  }
}

TEST(Marks, AnEqualOneIsAcceptedAndAnotherNamesBoth) {
  const auto weight = torch::ones({2, 3});
  mark_as_shared(weight, "model");
  EXPECT_NO_THROW(mark_as_shared(weight, "model"));
  const auto text = error_text<ConfigError>([&] { mark_placement(weight, "model", sharded(1)); });
  expect_parts(text, {"[2, 3]", "\"model\"", "shared", "sharded(1)", "unmark()"});
  EXPECT_EQ(placement_marks(weight), (PlacementMarks{{"model", shared()}}));
  unmark(weight, "model");
  EXPECT_TRUE(placement_marks(weight).empty());
  EXPECT_NO_THROW(mark_placement(weight, "model", sharded(1)));
}

TEST(Marks, OfAModuleNameTheParameterThatContradicts) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  mark_placement(net[1]->as<torch::nn::Linear>()->weight, "model", local());
  expect_parts(error_text<ConfigError>([&] { mark_as_shared(*net, "model"); }),
               {"1.weight", "local", "shared"});
}

TEST(Marks, UndefinedTensorsAndMissingMarksAreErrors) {
  expect_parts(error_text<ConfigError>([] { mark_as_shared(at::Tensor(), "model"); }),
               {"undefined", "\"model\""});
  expect_parts(error_text<ConfigError>([] { unmark(torch::ones({2}), "model"); }),
               {"[2]", "no mark", "\"model\""});
  expect_parts(error_text<ConfigError>([] { unmark(at::Tensor(), "model"); }), {"undefined"});
  const auto weight = torch::ones({2});
  mark_as_shared(weight, "spatial");
  EXPECT_THROW(unmark(weight, "model"), ConfigError);
}

TEST(Marks, OfDeadTensorsAreNotFoundAtReusedAddresses) {
  for (int i = 0; i < 2000; ++i) {
    const auto fresh = torch::empty({1});
    ASSERT_TRUE(placement_marks(fresh).empty()) << i;
    mark_as_shared(fresh, "model");
  }
}

TEST(Marks, OfDeadTensorsAreDropped) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer keeps freed memory";
  // A weak pointer keeps the tensor's header alive, so the address cannot come back before the
  // mark is dropped: fewer addresses than tensors show that some were. How many come back is the
  // allocator's choice.
  std::set<const void*> addresses;
  constexpr int kTensors = 4096;
  for (int i = 0; i < kTensors; ++i) {
    const auto fresh = torch::empty({1});
    mark_as_shared(fresh, "model");
    addresses.insert(fresh.unsafeGetTensorImpl());
  }
  EXPECT_LT(addresses.size(), static_cast<std::size_t>(kTensors));
}

TEST(Marks, OfLivingTensorsSurviveThoseOfDeadOnes) {
  std::vector<at::Tensor> kept;
  for (int i = 0; i < 300; ++i) {
    kept.push_back(torch::empty({1}));
    mark_placement(kept.back(), "model", sharded(i));
    mark_as_shared(torch::empty({1}), "model");
  }
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(placement_marks(kept[static_cast<std::size_t>(i)]).at("model"), sharded(i));
  }
}

TEST(Marks, MayBeMadeByManyThreads) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) {
        const auto weight = torch::empty({1});
        mark_as_shared(weight, "model");
        EXPECT_EQ(placement_marks(weight).size(), 1U);
        if (i % 2 == 0) unmark(weight, "model");
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST(SharedModel, MarksWhatItHolds) {
  SharedModel<torch::nn::Linear> made("model", 2, 3);
  EXPECT_EQ(placement_marks(made->weight), (PlacementMarks{{"model", shared()}}));
  EXPECT_EQ(placement_marks(made->bias), (PlacementMarks{{"model", shared()}}));
  EXPECT_EQ(made->forward(torch::ones({1, 2})).size(1), 3);

  const auto net = std::make_shared<torch::nn::LinearImpl>(2, 2);
  SharedModel<std::shared_ptr<torch::nn::LinearImpl>> held("spatial", net);
  EXPECT_EQ(placement_marks(net->weight), (PlacementMarks{{"spatial", shared()}}));
  EXPECT_EQ(held.holder(), net);
}

struct Decoder : torch::nn::Module {
  torch::nn::Embedding embedding{5, 3};
  torch::nn::Linear decoder{3, 5};
  Decoder() {
    register_module("embedding", embedding);
    register_module("decoder", decoder);
  }
};

TEST(TieWeights, MakesOneParameterOfTwo) {
  Decoder net;
  net.embedding->weight.set_requires_grad(false);
  tie_weights(net.embedding->weight, net.decoder->weight, *net.decoder);
  EXPECT_TRUE(net.decoder->weight.is_same(net.embedding->weight));
  const auto named = net.named_parameters();
  std::vector<std::string> names;
  for (const auto& item : named) names.push_back(item.key());
  EXPECT_EQ(names,
            (std::vector<std::string>{"embedding.weight", "decoder.weight", "decoder.bias"}));
  EXPECT_TRUE(named["decoder.weight"].is_same(named["embedding.weight"]));
  EXPECT_FALSE(net.decoder->weight.requires_grad());
  net.embedding->weight.set_requires_grad(true);
  net.decoder->forward(net.embedding->forward(torch::tensor({1}))).sum().backward();
  // Both uses are in the one gradient: row 0 only of the decoder, row 1 of both.
  const auto gradient = net.embedding->weight.grad();
  EXPECT_TRUE(at::equal(gradient[0], net.embedding->weight.detach()[1]));
  EXPECT_TRUE(at::allclose(
      gradient[1], net.embedding->weight.detach()[1] + net.embedding->weight.detach().sum(0)));
}

TEST(TieWeights, JoinsMarksAndRefusesThoseThatContradict) {
  Decoder net;
  mark_as_shared(net.embedding->weight, "model");
  mark_placement(net.decoder->weight, "model", local());
  mark_placement(net.decoder->weight, "data", replicated());
  const auto before = net.decoder->weight;
  expect_parts(error_text<ConfigError>(
                   [&] { tie_weights(net.embedding->weight, net.decoder->weight, *net.decoder); }),
               {"weight of ", "\"model\"", "local", "shared"});
  EXPECT_TRUE(net.decoder->weight.is_same(before));
  EXPECT_EQ(placement_marks(net.embedding->weight), (PlacementMarks{{"model", shared()}}));
  unmark(net.decoder->weight, "model");
  tie_weights(net.embedding->weight, net.decoder->weight, *net.decoder);
  EXPECT_EQ(placement_marks(net.decoder->weight),
            (PlacementMarks{{"data", replicated()}, {"model", shared()}}));
}

TEST(TieWeights, RefusesWhatCannotBeOneTensor) {
  Decoder net;
  const auto text = [&](const at::Tensor& source, at::Tensor& target, torch::nn::Module& owner) {
    return error_text<ConfigError>([&] { tie_weights(source, target, owner); });
  };
  expect_parts(text(net.embedding->weight, net.decoder->weight, net), {"no parameter of"});
  expect_parts(text(net.embedding->weight, net.decoder->bias, *net.decoder),
               {"bias of ", "[5] ", "[5, 3]"});
  expect_parts(text({}, net.decoder->weight, *net.decoder), {"undefined"});
  at::Tensor nothing;
  expect_parts(text(net.embedding->weight, nothing, *net.decoder), {"no parameter of"});
  net.decoder->to(torch::kDouble);
  expect_parts(text(net.embedding->weight, net.decoder->weight, *net.decoder),
               {"float64", "float32"});
  EXPECT_EQ(net.parameters().size(), 3U);
}

}  // namespace
}  // namespace fulmen
