#include "fulmen/core/distributed/sync_batch_norm.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>
#include <numeric>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/device_mesh.h"
#include "fulmen/core/distributed/sharded_context.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"

namespace fulmen {
namespace {

using testing::error_text;
using testing::expect_parts;
using torch::nn::BatchNormOptions;
using Rows = std::vector<std::int64_t>;

constexpr std::int64_t kChannels = 3;

/// What one process has to do with the rows of all ranks.
struct Case {
  Rows rows = {};                         ///< Of each rank.
  std::vector<std::int64_t> extent = {};  ///< Behind (N, C).
  BatchNormOptions options = BatchNormOptions(kChannels);
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  at::ScalarType dtype = at::kDouble;
  at::ScalarType parameters = at::kDouble;
  /// Of numbers of about 1: some 100 values to a sum, each rounded to 1.1e-16, and the few
  /// operations behind it, stay below 100 * 1.1e-16 * 10. Derived for others where they are given.
  double tolerance = 1e-12;

  std::int64_t all_rows() const { return std::accumulate(rows.begin(), rows.end(), 0L); }
  at::Tensor mine(const at::Tensor& joint, int rank) const {
    const auto begin = std::accumulate(rows.begin(), rows.begin() + rank, 0L);
    return joint.narrow(0, begin, rows[static_cast<std::size_t>(rank)]);
  }
};

/// Numbers about 1 around `offset`, others in each row and channel.
at::Tensor numbers(const Case& test, double seed, double offset) {
  std::vector<std::int64_t> shape = {test.all_rows(), kChannels};
  shape.insert(shape.end(), test.extent.begin(), test.extent.end());
  const auto count = c10::multiply_integers(shape);
  const auto flat = at::sin(at::arange(count, at::kDouble) * (1.7 + seed)) * 1.5 + offset;
  return flat.reshape(shape).to(test.dtype).contiguous(test.format);
}

template <class Norm>
void give_values(Norm& norm, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  norm->to(dtype);
  if (!norm->weight.defined()) return;
  norm->weight.copy_(at::arange(kChannels) * 0.5 - 0.7);
  norm->bias.copy_(at::arange(kChannels) * 0.3 - 0.2);
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance) {
  ASSERT_EQ(actual.defined(), expected.defined());
  if (!actual.defined()) return;
  ASSERT_EQ(actual.sizes(), expected.sizes());
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
  if (actual.numel() == 0) return;
  const auto difference = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs().max();
  EXPECT_LE(difference.item<double>(), tolerance) << actual << "\nis not\n" << expected;
}

at::Tensor sum_over_ranks(const at::Tensor& tensor, const ProcessGroup& group) {
  if (!tensor.defined()) return tensor;
  auto sum = tensor.clone();
  all_reduce(sum, ReduceOp::kSum, group);
  return sum;
}

/// Two steps of training and an evaluation: outputs, gradients of the inputs, summed gradients of
/// the parameters, running values.
template <class Reference>
void expect_joint_batch(const Case& test) {
  SCOPED_TRACE(::testing::Message() << "rows " << at::IntArrayRef(test.rows) << ", behind (N, C) "
                                    << at::IntArrayRef(test.extent));
  run_thread_ranks(static_cast<int>(test.rows.size()), [&](const std::shared_ptr<World>& world) {
    const auto group = world->all();
    Reference one(test.options);
    SyncBatchNorm norm(test.options, group);
    give_values(one, test.parameters);
    give_values(norm, test.parameters);
    for (const int step : {0, 1}) {
      const auto joint = numbers(test, step, 2).requires_grad_();
      const auto input = test.mine(joint.detach(), group.rank()).clone().requires_grad_();
      const auto coefficients = numbers(test, step + 0.1, 0.5);
      const auto expected = one->forward(joint);
      const auto actual = norm->forward(input);
      expect_close(actual, test.mine(expected, group.rank()), test.tolerance);
      EXPECT_TRUE(input.numel() == 0 || actual.is_contiguous(test.format));
      (expected * coefficients).sum().backward();
      (actual * test.mine(coefficients, group.rank())).sum().backward();
      expect_close(input.grad(), test.mine(joint.grad(), group.rank()), test.tolerance);
    }
    if (test.options.affine()) {
      const auto bound = test.tolerance * static_cast<double>(test.all_rows());
      expect_close(sum_over_ranks(norm->weight.grad(), group), one->weight.grad(), bound);
      expect_close(sum_over_ranks(norm->bias.grad(), group), one->bias.grad(), bound);
    }
    expect_close(norm->running_mean, one->running_mean, test.tolerance);
    expect_close(norm->running_var, one->running_var, test.tolerance);
    if (test.options.track_running_stats()) {
      EXPECT_EQ(norm->num_batches_tracked.template item<std::int64_t>(), 2);
    }
  });
}

TEST(SyncBatchNorm, EqualsBatchNormOnTheJointBatchOf1To4RanksAlsoWithoutRows) {
  for (const Rows& rows :
       {Rows{5}, Rows{3, 4}, Rows{5, 0}, Rows{0, 5}, Rows{2, 0, 5}, Rows{1, 3, 0, 2}}) {
    expect_joint_batch<torch::nn::BatchNorm1d>({.rows = rows});
    expect_joint_batch<torch::nn::BatchNorm1d>({.rows = rows, .extent = {4}});
    expect_joint_batch<torch::nn::BatchNorm2d>({.rows = rows, .extent = {2, 3}});
    expect_joint_batch<torch::nn::BatchNorm3d>({.rows = rows, .extent = {2, 1, 3}});
  }
}

TEST(SyncBatchNorm, EqualsBatchNormWithEveryOption) {
  const Rows rows = {3, 0, 4};
  for (const auto& options : {BatchNormOptions(kChannels).affine(false),
                              BatchNormOptions(kChannels).momentum(std::nullopt).eps(0.1),
                              BatchNormOptions(kChannels).momentum(0.6),
                              BatchNormOptions(kChannels).track_running_stats(false)}) {
    expect_joint_batch<torch::nn::BatchNorm2d>(
        {.rows = rows, .extent = {2, 3}, .options = options});
  }
}

TEST(SyncBatchNorm, EqualsBatchNormInChannelsLastAndKeepsIt) {
  expect_joint_batch<torch::nn::BatchNorm2d>(
      {.rows = {3, 4}, .extent = {2, 5}, .format = at::MemoryFormat::ChannelsLast});
}

TEST(SyncBatchNorm, EqualsBatchNormInFloat32AndBfloat16) {
  // Values and gradients up to 8, some 50 of them to a sum: 50 * 8 * 6e-8. One rounding to bfloat16
  // of each output is 2^-8 of at most 4, twice because the other side rounds as well.
  const Case single = {.rows = {3, 0, 4},
                       .extent = {2, 3},
                       .dtype = at::kFloat,
                       .parameters = at::kFloat,
                       .tolerance = 2.4e-5};
  expect_joint_batch<torch::nn::BatchNorm2d>(single);
  auto half = single;
  half.dtype = at::kBFloat16;
  half.tolerance = 2 * 4.0 / 256;
  expect_joint_batch<torch::nn::BatchNorm2d>(half);
}

TEST(SyncBatchNorm, KeepsFloat32StatisticsOfBfloat16Inputs) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    for (const auto parameters : {at::kFloat, at::kBFloat16}) {
      SyncBatchNorm norm(BatchNormOptions(1).momentum(std::nullopt), world->all());
      norm->weight.set_data(norm->weight.to(parameters));
      norm->bias.set_data(norm->bias.to(parameters));
      // 128 to 131 and 129 to 132: in bfloat16 both means would be 130.
      const auto input = (at::arange(4) + (128 + world->rank())).reshape({4, 1}).to(at::kBFloat16);
      const auto output = norm->forward(input);
      EXPECT_EQ(output.scalar_type(), at::kBFloat16);
      EXPECT_EQ(norm->running_mean.item<float>(), 130.0f);
      EXPECT_FLOAT_EQ(norm->running_var.item<float>(), 12.0f / 7);
    }
  });
}

TEST(SyncBatchNorm, LosesNothingToCancellation) {
  // A variance of about 1 around 10000 and, on the other rank, around 10002. In float32 a sum of
  // squares is off by 1e8 * 6e-8; the sums of squared deviations by some 1e-6 of themselves.
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto make = [](double offset) {
      return (at::sin(at::arange(1000, at::kDouble)) + offset).reshape({1000, 1}).to(at::kFloat);
    };
    const auto joint = at::cat({make(10000), make(10002)}).to(at::kDouble);
    SyncBatchNorm norm(BatchNormOptions(1).momentum(std::nullopt), world->all());
    norm->forward(make(10000 + 2 * world->rank()));
    const auto expected = joint.var(0).item<double>();
    EXPECT_NEAR(norm->running_var.item<double>(), expected, 1e-5 * expected);
    EXPECT_NEAR(norm->running_mean.item<double>(), joint.mean().item<double>(), 1e-3);
  });
}

TEST(SyncBatchNorm, GivesARankWithoutRowsGradientsOfZeroNotNone) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    SyncBatchNorm norm(BatchNormOptions(kChannels), world->all());
    const bool empty = world->rank() == 1;
    // The empty rank's input wants no gradient; the other one's does, and needs this rank for it.
    auto input = at::rand({empty ? 0 : 4, kChannels});
    if (!empty) input.requires_grad_();
    const auto output = norm->forward(input);
    EXPECT_EQ(output.size(0), input.size(0));
    EXPECT_TRUE(output.requires_grad());
    output.sum().backward();
    ASSERT_TRUE(norm->weight.grad().defined());
    ASSERT_TRUE(norm->bias.grad().defined());
    EXPECT_EQ(norm->bias.grad().sum().item<float>(), empty ? 0 : 4 * kChannels);
    EXPECT_EQ(input.grad().defined(), !empty);
  });
}

TEST(SyncBatchNorm, CallsOneCollectiveForwardAndOneBackwardAndNoneInEvaluation) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto group = world->all();
    SyncBatchNorm norm(BatchNormOptions(kChannels), group);
    const auto calls = [&] { return group.counters().total().calls; };
    const auto input = at::rand({4, kChannels}).requires_grad_();
    const auto before = calls();
    const auto output = norm->forward(input);
    EXPECT_EQ(calls() - before, 1);
    output.sum().backward();
    EXPECT_EQ(calls() - before, 2);
    norm->eval();
    torch::nn::BatchNorm1d one{BatchNormOptions(kChannels)};
    one->running_mean.copy_(norm->running_mean);
    one->running_var.copy_(norm->running_var);
    one->eval();
    // Other rows on each rank, or one rank alone: no matter.
    if (world->rank() == 0) {
      EXPECT_TRUE(at::equal(norm->forward(input), one->forward(input)));
    }
    EXPECT_EQ(calls() - before, 2);
  });
}

TEST(SyncBatchNorm, RefusesOneValuePerChannelOnAllRanksAndChangesNothing) {
  for (const int rows : {1, 0}) {
    std::atomic<int> thrown = 0;
    run_thread_ranks(3, [&](const std::shared_ptr<World>& world) {
      SyncBatchNorm norm(BatchNormOptions(kChannels), world->all());
      const auto input = at::ones({world->rank() == 1 ? rows : 0, kChannels});
      const auto text = error_text<ConfigError>([&] { norm->forward(input); });
      expect_parts(text, {"more than 1 value per channel", "have " + std::to_string(rows)});
      EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 0);
      EXPECT_EQ(norm->running_mean.abs().sum().item<float>(), 0);
      ++thrown;
    });
    EXPECT_EQ(thrown, 3);
  }
}

TEST(SyncBatchNorm, RefusesInputsThatAreNotItsOwn) {
  run_thread_ranks(1, [](const std::shared_ptr<World>& world) {
    SyncBatchNorm norm(BatchNormOptions(kChannels), world->all());
    for (const auto& input : {at::ones({3}), at::ones({2, kChannels + 1})}) {
      expect_parts(error_text<ConfigError>([&] { norm->forward(input); }), {"(N, 3, ...)"});
    }
  });
}

TEST(SyncBatchNorm, RefusesASecondDerivative) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    SyncBatchNorm norm(BatchNormOptions(kChannels), world->all());
    const auto input = at::rand({4, kChannels}).requires_grad_();
    const auto loss = norm->forward(input).square().sum();
    const auto gradient = torch::autograd::grad({loss}, {input}, {}, true, true)[0];
    expect_parts(error_text<std::exception>([&] { gradient.square().sum().backward(); }),
                 {"SyncBatchNorm has no second derivative"});
  });
}

TEST(SyncBatchNorm, TakesTheDataGroupOfTheMeshItIsMadeIn) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    SyncBatchNorm outside(kChannels);
    EXPECT_FALSE(outside->group());
    expect_parts(error_text<ConfigError>([&] {
                   outside->forward(at::ones({2, kChannels}));
                 }),
                 {"configure_sharded_model()", "set_group()"});
    outside->eval();
    EXPECT_NO_THROW(outside->forward(at::ones({2, kChannels})));
    const DeviceMesh mesh({{"data", 2}, {"model", 2}}, world);
    const ShardedContext context(mesh);
    SyncBatchNorm inside(kChannels);
    ASSERT_TRUE(inside->group());
    EXPECT_EQ(*inside->group(), mesh.data_group());
    const auto twin = std::dynamic_pointer_cast<SyncBatchNormImpl>(inside->clone());
    EXPECT_EQ(*twin->group(), mesh.data_group());
    EXPECT_NE(twin->weight.data_ptr(), inside->weight.data_ptr());
  });
}

std::vector<std::string> names_of(const torch::nn::Module& module) {
  std::vector<std::string> names = module.named_parameters().keys();
  for (auto& name : module.named_buffers().keys()) names.push_back(std::move(name));
  return names;
}

/// BatchNorms wherever LibTorch lets them be replaced: in containers, and as children that the
/// module finds by name.
struct Net : torch::nn::Module {
  Net() {
    using namespace torch::nn;
    const BatchNorm1d twice(4);
    layers =
        register_module("layers", Sequential(Linear(4, 4), BatchNorm1d(4), twice, ReLU(), twice));
    list = register_module("list", ModuleList(BatchNorm1d(4)));
    dict = register_module("dict", ModuleDict());
    dict->update(
        torch::OrderedDict<std::string, std::shared_ptr<Module>>({{"norm", BatchNorm1d(4).ptr()}}));
    register_module("own", BatchNorm1d(4));
  }
  at::Tensor forward(at::Tensor x) {
    x = layers->forward(x);
    const auto any = [&](const std::shared_ptr<torch::nn::Module>& module) {
      if (auto* sync = module->as<SyncBatchNormImpl>()) return sync->forward(x);
      return module->as<torch::nn::BatchNorm1dImpl>()->forward(x);
    };
    x = any(list[0]);
    x = any(dict["norm"]);
    return any(named_children()["own"]);
  }
  torch::nn::Sequential layers{nullptr};
  torch::nn::ModuleList list{nullptr};
  torch::nn::ModuleDict dict{nullptr};
};

TEST(ConvertSyncBatchNorm, ReplacesChildrenAndKeepsTheirTensorsNamesAndModes) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    torch::manual_seed(1);
    auto one = std::make_shared<Net>();
    auto net = std::make_shared<Net>();
    {
      const at::NoGradGuard no_grad;
      const auto from = one->parameters();
      const auto to = net->parameters();
      for (std::size_t i = 0; i < from.size(); ++i) {
        from[i].copy_(
            at::sin(at::arange(from[i].numel()) + static_cast<double>(i)).reshape(from[i].sizes()));
        to[i].copy_(from[i]);
      }
    }
    one->to(at::kDouble);
    net->to(at::kDouble);
    net->named_children()["own"]->eval();
    one->named_children()["own"]->eval();
    const auto names = names_of(*net);
    const auto parameters = net->parameters();
    const auto buffers = net->buffers();
    EXPECT_EQ(convert_sync_batch_norm(*net, world->all()), 5);
    EXPECT_EQ(convert_sync_batch_norm(*net, world->all()), 0);
    EXPECT_EQ(names_of(*net), names);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_TRUE(net->parameters()[i].is_same(parameters[i]));
    for (std::size_t i = 0; i < buffers.size(); ++i)
      EXPECT_TRUE(net->buffers()[i].is_same(buffers[i]));
    EXPECT_FALSE(net->named_children()["own"]->is_training());

    const auto joint = at::sin(at::arange(28, at::kDouble)).reshape({7, 4});
    const auto mine = world->rank() == 0 ? joint.narrow(0, 0, 3) : joint.narrow(0, 3, 4);
    const auto expected = one->forward(joint);
    const auto actual = net->forward(mine);
    // Five norms, each of which may divide by a standard deviation of 0.1 or so.
    expect_close(
        actual, world->rank() == 0 ? expected.narrow(0, 0, 3) : expected.narrow(0, 3, 4), 1e-10);
  });
}

TEST(ConvertSyncBatchNorm, RefusesWhatItCannotReplaceAndChangesNothing) {
  struct Typed : torch::nn::Module {
    Typed() {
      layers = register_module("layers", torch::nn::Sequential(torch::nn::BatchNorm2d(4)));
      bn = register_module("bn", torch::nn::BatchNorm2d(4));
    }
    torch::nn::Sequential layers{nullptr};
    torch::nn::BatchNorm2d bn{nullptr};
  };
  run_thread_ranks(1, [](const std::shared_ptr<World>& world) {
    torch::nn::ModuleList outer(std::make_shared<Typed>());
    const auto text =
        error_text<ConfigError>([&] { convert_sync_batch_norm(*outer, world->all()); });
    expect_parts(text, {"0.bn", "fulmen::SyncBatchNorm", "nothing was changed"});
    EXPECT_EQ(text.find("layers"), std::string::npos) << text;
    EXPECT_NE(outer->ptr<Typed>(0)->layers[0]->as<torch::nn::BatchNorm2dImpl>(), nullptr);
    torch::nn::BatchNorm2d alone(4);
    expect_parts(error_text<ConfigError>([&] { convert_sync_batch_norm(*alone, world->all()); }),
                 {"the module itself"});
    const SyncBatchNorm same(*alone, world->all());
    EXPECT_TRUE(same->weight.is_same(alone->weight));
  });
}

TEST(ConvertSyncBatchNorm, GivesTheGroupToThoseWithoutOne) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const SyncBatchNorm member(4);
    torch::nn::Sequential layers(member);
    EXPECT_EQ(convert_sync_batch_norm(*layers, world->all()), 1);
    EXPECT_EQ(*member->group(), world->all());
  });
}

}  // namespace
}  // namespace fulmen
