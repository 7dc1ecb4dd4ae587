#include "fulmen/core/checkpoint/weights.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "fulmen/core/checkpoint/safetensors.h"
#include "tests/core/checkpoint/support.h"

namespace fulmen {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(3, 2));
    no_bias =
        register_module("no_bias", torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
    norm = register_module("norm", torch::nn::BatchNorm1d(2));
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear no_bias{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

/// Two names of one parameter, and a third of its own.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    weight = register_parameter("b_weight", torch::randn({2, 3}));
    register_parameter("a_weight", weight);
    register_parameter("own", torch::randn({2, 3}));
  }
  at::Tensor weight;
};
TORCH_MODULE(Tied);

struct UntiedImpl : torch::nn::Module {
  UntiedImpl() {
    for (const char* name : {"a_weight", "b_weight", "own"}) {
      register_parameter(name, torch::randn({2, 3}));
    }
  }
};
TORCH_MODULE(Untied);

TensorMap values_of(const torch::nn::Module& module) {
  TensorMap values;
  for (const auto& [name, tensor] : named_tensors(module)) values[name] = tensor.detach().clone();
  return values;
}

TEST(ModuleState, NamesTensorsAsPythonDoes) {
  Net net;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : module_state(*net).tensors) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"first.bias",
                                      "first.weight",
                                      "no_bias.weight",
                                      "norm.bias",
                                      "norm.num_batches_tracked",
                                      "norm.running_mean",
                                      "norm.running_var",
                                      "norm.weight"}));
}

TEST(ModuleState, LeavesOutBuffersThatAreNotDefined) {
  const torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(2).track_running_stats(false));
  EXPECT_EQ(module_state(*norm).tensors.size(), 2u);
}

TEST(ModuleState, StoresATiedTensorOnce) {
  Tied tied;
  const auto state = module_state(*tied);
  EXPECT_EQ(state.tensors.size(), 2u);
  EXPECT_EQ(state.aliases, (std::map<std::string, std::string>{{"b_weight", "a_weight"}}));
  EXPECT_TRUE(state.tensors.at("a_weight").equal(tied->weight));
}

TEST(ModuleState, FindsAModuleThatIsRegisteredTwice) {
  torch::nn::Sequential both;
  torch::nn::Linear linear(2, 2);
  both->push_back("x", linear);
  both->push_back("y", linear);
  const auto state = module_state(*both);
  EXPECT_EQ(state.tensors.size(), 2u);
  EXPECT_EQ(state.aliases.at("y.weight"), "x.weight");
}

TEST(LoadWeights, RestoresACheckpointAndItsPointer) {
  const ScratchDirectory scratch;
  Net source;
  Net target;
  source->norm->num_batches_tracked.fill_(7);
  write_checkpoint(scratch / "a", {.model = module_state(*source).tensors});
  write_pointer(scratch.path(), "best", "a");
  const auto weight = target->first->weight;
  const auto report = load_weights(*target, scratch / "best");
  EXPECT_TRUE(same_tensors(values_of(*target), values_of(*source)));
  EXPECT_TRUE(report.missing.empty());
  EXPECT_TRUE(weight.is_same(target->first->weight));
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_TRUE(weight.is_leaf());
}

TEST(LoadWeights, RestoresAPlainFile) {
  const ScratchDirectory scratch;
  Net source;
  Net target;
  write_safetensors(scratch / "w.safetensors", module_state(*source).tensors);
  load_weights(*target, scratch / "w.safetensors");
  EXPECT_TRUE(same_tensors(values_of(*target), values_of(*source)));
}

TEST(LoadWeights, ListsAllProblemsInOneErrorAndChangesNothing) {
  const ScratchDirectory scratch;
  Net net;
  auto tensors = values_of(*net);
  tensors.erase("first.bias");
  tensors["extra"] = torch::zeros({1});
  tensors["first.weight"] = torch::zeros({1, 3});  // Could be broadcast.
  tensors["norm.weight"] = torch::zeros({2}, torch::kFloat64);
  tensors["norm.bias"] = torch::zeros({1, 2});
  tensors["no_bias.weight"].fill_(9);
  write_safetensors(scratch / "w.safetensors", tensors);
  const auto before = values_of(*net);
  const auto text = checkpoint_error([&] { load_weights(*net, scratch / "w.safetensors"); });
  EXPECT_TRUE(same_tensors(values_of(*net), before));
  EXPECT_HAS(text, "5 problems");
  EXPECT_HAS(text, "\n  missing: 'first.bias'");
  EXPECT_HAS(text, "\n  unexpected: 'extra'");
  EXPECT_HAS(text, "\n  shape: 'first.weight' is [1, 3] in the file and [2, 3] here");
  EXPECT_HAS(text, "\n  shape: 'norm.bias'");
  EXPECT_HAS(text, "\n  dtype: 'norm.weight' is Double in the file and Float here");
  EXPECT_HAS(text, "w.safetensors");
}

TEST(LoadWeights, NotStrictReportsNamesAndStillRefusesShapes) {
  const ScratchDirectory scratch;
  Net net;
  auto tensors = values_of(*net);
  tensors.erase("first.bias");
  tensors["extra"] = torch::zeros({1});
  tensors["no_bias.weight"].fill_(9);
  write_safetensors(scratch / "w.safetensors", tensors);
  const auto report = load_weights(*net, scratch / "w.safetensors", {.strict = Strict::kNo});
  EXPECT_EQ(report.missing, std::vector<std::string>{"first.bias"});
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"extra"});
  EXPECT_TRUE(net->no_bias->weight.equal(torch::full({2, 2}, 9.0f)));

  tensors["norm.bias"] = torch::zeros({5});
  tensors["no_bias.weight"].fill_(8);
  write_safetensors(scratch / "w.safetensors", tensors);
  const auto text = checkpoint_error(
      [&] { load_weights(*net, scratch / "w.safetensors", {.strict = Strict::kNo}); });
  EXPECT_HAS(text, "norm.bias");
  EXPECT_HAS(text, "1 problem ");
  EXPECT_TRUE(net->no_bias->weight.equal(torch::full({2, 2}, 9.0f)));
}

TEST(LoadWeights, GivesATiedModuleItsAliases) {
  const ScratchDirectory scratch;
  Tied source;
  Tied target;
  const auto state = module_state(*source);
  write_checkpoint(scratch / "a", {.model = state.tensors, .aliases = state.aliases});
  load_weights(*target, scratch / "a");
  EXPECT_TRUE(same_tensors(values_of(*target), values_of(*source)));
  Untied untied;
  load_weights(*untied, scratch / "a" / "model.safetensors");
  EXPECT_TRUE(same_tensors(values_of(*untied), values_of(*source)));
}

TEST(LoadWeights, AcceptsSeparateEntriesForATiedTensorOnlyIfTheyAreEqual) {
  const ScratchDirectory scratch;
  Tied target;
  const auto path = scratch / "w.safetensors";
  auto one = torch::full({2, 3}, 4.0f);
  one[0][0] = std::nan("");
  write_safetensors(path, {{"a_weight", one}, {"b_weight", one.clone()}, {"own", one}});
  load_weights(*target, path);
  EXPECT_TRUE(same_bytes(target->weight, one));

  write_safetensors(path, {{"a_weight", one}, {"b_weight", one + 1}, {"own", one}});
  const auto before = values_of(*target);
  const auto text = checkpoint_error([&] { load_weights(*target, path); });
  EXPECT_HAS(text, "tied: 'b_weight' and 'a_weight'");
  EXPECT_TRUE(same_tensors(values_of(*target), before));
}

TEST(LoadWeights, FindsTiesThatShareMemoryAlone) {
  const ScratchDirectory scratch;
  Untied target;
  target->named_parameters()["b_weight"].set_data(target->named_parameters()["a_weight"].data());
  const auto one = torch::ones({2, 3});
  write_safetensors(scratch / "w.safetensors",
                    {{"a_weight", one}, {"b_weight", one * 2}, {"own", one}});
  EXPECT_HAS(checkpoint_error([&] { load_weights(*target, scratch / "w.safetensors"); }), "tied");
}

TEST(LoadInto, RefusesAliasesThatContradictTheStoredValues) {
  const auto target = torch::zeros({2});
  const auto ones = torch::ones({2});
  EXPECT_HAS(
      checkpoint_error([&] {
        load_into(
            {{"a", ones}, {"b", ones * 2}}, {{"b", "a"}}, {{"a", target}, {"b", target}}, "test");
      }),
      "'b' and 'a' should be one tensor");
  EXPECT_HAS(checkpoint_error([&] {
               load_into({{"a", ones}}, {{"b", "absent"}}, {{"a", target}, {"b", target}}, "test");
             }),
             "'absent', which is not stored");
  EXPECT_TRUE(target.equal(torch::zeros({2})));
  load_into(
      {{"a", ones}, {"b", ones.clone()}}, {{"b", "a"}}, {{"a", target}, {"b", target}}, "test");
  EXPECT_TRUE(target.equal(ones));
}

TEST(LoadInto, CountsAnAliasThatTheModuleLacksAsUnexpected) {
  const auto target = torch::zeros({2});
  const TensorMap stored = {{"a", torch::ones({2})}};
  EXPECT_HAS(checkpoint_error([&] {
               load_into(stored, {{"b", "a"}}, {{"a", target}}, "t");
             }),
             "unexpected: 'b'");
  const auto report = load_into(stored, {{"b", "a"}}, {{"b", target}}, "t", Strict::kNo);
  EXPECT_EQ(report.unexpected, std::vector<std::string>{"a"});
  EXPECT_TRUE(target.equal(torch::ones({2})));
}

TEST(LoadInto, KeepsMemoryStridesAndGradients) {
  auto base = torch::zeros({3, 2});
  auto target = base.t();
  auto parameter = torch::zeros({2}, torch::requires_grad());
  parameter.mutable_grad() = torch::ones({2});
  const auto value = torch::arange(6, torch::kFloat32).view({2, 3});
  load_into({{"t", value}, {"p", torch::ones({2})}}, {}, {{"t", target}, {"p", parameter}}, "test");
  EXPECT_TRUE(base.equal(value.t()));
  EXPECT_EQ(target.strides(), (at::IntArrayRef{1, 2}));
  EXPECT_TRUE(parameter.grad().equal(torch::ones({2})));
  EXPECT_TRUE(parameter.is_leaf());
}

TEST(LoadInto, RefusesTargetsWithoutMemory) {
  const auto target = torch::empty({2}, torch::kMeta);
  EXPECT_HAS(checkpoint_error([&] {
               load_into({{"a", torch::ones({2})}}, {}, {{"a", target}}, "t");
             }),
             "no memory");
}

TEST(CheckLoad, ChangesNothing) {
  const auto target = torch::zeros({2});
  check_load({{"a", torch::ones({2})}}, {}, {{"a", target}}, "test");
  EXPECT_TRUE(target.equal(torch::zeros({2})));
}

TEST(LoadWeights, RefusesABufferThatSharesItsElementsBeforeItChangesAnything) {
  torch::nn::Linear module(2, 2);
  module->register_buffer("same", torch::ones({1}).expand({5}));
  const auto before = module->weight.detach().clone();
  TensorMap stored;
  for (const auto& [name, tensor] : module_state(*module).tensors)
    stored[name] = tensor.clone() + 1;
  try {
    load_into(stored, {}, named_tensors(*module), "test");
    FAIL() << "nothing was thrown";
  } catch (const CheckpointError& error) {
    EXPECT_NE(std::string(error.what()).find("'same' share memory"), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(module->weight.equal(before));
}

}  // namespace
}  // namespace fulmen
