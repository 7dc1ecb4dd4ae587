#include "fulmen/core/optim/parameters.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "fulmen/core/optim/adam.h"
#include "fulmen/core/support/error.h"
#include "tests/core/optim/golden.h"

namespace fulmen {
namespace {

struct TiedNet : torch::nn::Module {
  TiedNet() {
    first = register_module("first", torch::nn::Linear(2, 2));
    second = register_module("second", torch::nn::Linear(2, 2));
    second->weight = second->register_parameter("tied", first->weight);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

std::vector<std::string> names_of(const Parameters& parameters) {
  std::vector<std::string> names;
  for (const auto& parameter : parameters.named()) names.push_back(parameter.name);
  return names;
}

TEST(Parameters, OfAModuleAreThoseThatRequireAGradientEachOnce) {
  TiedNet net;
  net.second->bias.requires_grad_(false);
  EXPECT_EQ(names_of(net),
            (std::vector<std::string>{"first.weight", "first.bias", "second.weight"}));
  std::size_t listed = 0;
  for (const auto& tensor : net.parameters()) listed += tensor.is_same(net.first->weight) ? 1 : 0;
  ASSERT_EQ(listed, 2u);  // LibTorch lists the tied tensor twice.
}

TEST(Parameters, AreMadeFromHoldersPointersListsAndNamedTensors) {
  torch::nn::Linear holder(2, 1);
  const std::vector<std::string> expected = {"weight", "bias"};
  EXPECT_EQ(names_of(holder), expected);
  EXPECT_EQ(names_of(*holder), expected);
  EXPECT_EQ(names_of(holder.ptr()), expected);
  EXPECT_EQ(names_of(holder->named_parameters()), expected);
  EXPECT_EQ(names_of(holder->parameters()), (std::vector<std::string>{"", ""}));
  EXPECT_EQ(names_of(std::vector<NamedParameter>{{.name = "w", .tensor = holder->weight}}),
            std::vector<std::string>{"w"});
}

TEST(Parameters, OfTwoModulesInTwoGroupsHaveDistinctNamesInTheState) {
  torch::nn::Linear encoder(2, 2), decoder(2, 2);
  auto optimizer = AdamW::make({{.parameters = encoder, .lr = 0.1}, {.parameters = decoder}});
  for (const auto& net : {encoder, decoder}) {
    for (const auto& tensor : net->parameters()) tensor.mutable_grad() = at::ones_like(tensor);
  }
  optimizer->step();
  const auto state = optimizer->state_dict();
  EXPECT_EQ(state.tensors.size(), 12u);
  EXPECT_TRUE(state.tensors.contains("#1.0/exp_avg"));
}

}  // namespace
}  // namespace fulmen
