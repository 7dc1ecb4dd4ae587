#include "fulmen/core/distributed/differentiable.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/shared_weights.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"

namespace fulmen {
namespace {

using testing::error_text;
using testing::expect_parts;
using Tensors = std::vector<at::Tensor>;

/// What an operation means, written for all ranks in one process.
struct Meaning {
  std::function<at::Tensor(const at::Tensor&, const ProcessGroup&)> operation;
  /// The result of `rank` from the inputs of all.
  std::function<at::Tensor(const Tensors& inputs, int rank)> model;
  enum class Input { kOwn, kOneForAll } input = Input::kOwn;
  /// kOwn: the loss is the sum of a term of each rank. kOneForAll: every rank computes it in whole.
  enum class Loss { kOwn, kOneForAll } loss = Loss::kOwn;
};

/// Whole numbers, so that sums are exact in any order.
at::Tensor numbers(at::IntArrayRef shape, int64_t seed) {
  const auto numel = c10::multiply_integers(shape);
  return ((at::arange(numel, at::kDouble) * (2 * seed + 3) + seed) % 17 - 8).reshape(shape);
}

at::Tensor total(const Tensors& tensors) {
  return at::stack(tensors).sum(0);
}

at::Tensor part_of(const at::Tensor& tensor, int64_t parts, int rank, int64_t dim) {
  return tensor.chunk(parts, dim)[static_cast<std::size_t>(rank)];
}

/// Results and gradients of the ranks against those of the model, to the last bit.
void expect_meaning(const Meaning& meaning, int size, at::IntArrayRef shape) {
  Tensors inputs;
  Tensors leaves;
  for (int rank = 0; rank < size; ++rank) {
    const bool fresh = meaning.input == Meaning::Input::kOwn || rank == 0;
    leaves.push_back(fresh ? numbers(shape, rank).requires_grad_() : leaves[0]);
    inputs.push_back(leaves.back() * 3);
  }
  const auto weight = [&](const at::Tensor& result, int rank) {
    return numbers(result.sizes(), 100 + (meaning.loss == Meaning::Loss::kOwn ? rank : 0));
  };
  Tensors results;
  Tensors losses;
  for (int rank = 0; rank < size; ++rank) {
    results.push_back(meaning.model(inputs, rank));
    losses.push_back((results.back() * weight(results.back(), rank)).sum());
  }
  (meaning.loss == Meaning::Loss::kOwn ? total(losses) : losses[0]).backward();

  run_thread_ranks(size, [&](const std::shared_ptr<World>& world) {
    const int rank = world->rank();
    const auto& expected = leaves[static_cast<std::size_t>(rank)];
    const auto leaf = expected.detach().clone().requires_grad_();
    const auto result = meaning.operation(leaf * 3, world->all());
    EXPECT_TRUE(at::equal(result, results[static_cast<std::size_t>(rank)]))
        << result << "\nis not\n"
        << results[static_cast<std::size_t>(rank)];
    (result * weight(result, rank)).sum().backward();
    // What no rank uses has no gradient in the model.
    const auto gradient =
        expected.grad().defined() ? expected.grad() : at::zeros_like(expected.detach());
    EXPECT_TRUE(at::equal(leaf.grad(), gradient)) << leaf.grad() << "\nis not\n" << gradient;
  });
}

void expect_meaning(const Meaning& meaning, at::IntArrayRef shape = {12, 24}) {
  for (int size = 1; size <= 4; ++size) expect_meaning(meaning, size, shape);
}

TEST(CopyToGroup, SumsTheGradients) {
  expect_meaning({.operation = copy_to_group,
                  .model = [](const Tensors& inputs, int rank) -> at::Tensor {
                    return inputs[static_cast<std::size_t>(rank)];
                  },
                  .input = Meaning::Input::kOneForAll});
}

TEST(ReduceFromGroup, SumsAndPassesTheGradient) {
  expect_meaning({.operation = reduce_from_group,
                  .model = [](const Tensors& inputs, int) { return total(inputs); },
                  .loss = Meaning::Loss::kOneForAll});
}

TEST(ScatterToGroup, TakesAPartAndGathersTheGradients) {
  for (const int64_t dim : {0, 1, -1, -2}) {
    expect_meaning(
        {.operation = [dim](const auto& tensor,
                            const auto& group) { return scatter_to_group(tensor, dim, group); },
         .model = [dim](const Tensors& inputs,
                        int rank) { return part_of(inputs[0], std::ssize(inputs), rank, dim); },
         .input = Meaning::Input::kOneForAll});
  }
}

TEST(GatherFromGroup, JoinsAndTakesItsPartOfTheGradient) {
  for (const int64_t dim : {0, 1, -1, -2}) {
    expect_meaning(
        {.operation = [dim](const auto& tensor,
                            const auto& group) { return gather_from_group(tensor, dim, group); },
         .model = [dim](const Tensors& inputs, int) { return at::cat(inputs, dim); },
         .loss = Meaning::Loss::kOneForAll});
  }
}

TEST(GatherToGroup, JoinsAndSumsItsPartOfTheGradients) {
  for (const int64_t dim : {0, 1, -1, -2}) {
    expect_meaning(
        {.operation = [dim](const auto& tensor,
                            const auto& group) { return gather_to_group(tensor, dim, group); },
         .model = [dim](const Tensors& inputs, int) { return at::cat(inputs, dim); }});
  }
}

TEST(ReduceScatterFromGroup, SumsAPartAndGathersTheGradients) {
  for (const int64_t dim : {0, 1, -1, -2}) {
    expect_meaning({.operation =
                        [dim](const auto& tensor, const auto& group) {
                          return reduce_scatter_from_group(tensor, dim, group);
                        },
                    .model =
                        [dim](const Tensors& inputs, int rank) {
                          return part_of(total(inputs), std::ssize(inputs), rank, dim);
                        }});
  }
}

TEST(Shift, GoesToTheNextRankAndItsGradientBack) {
  for (int size = 2; size <= 4; ++size) {
    expect_meaning({.operation = shift_to_next,
                    .model =
                        [](const Tensors& inputs, int rank) {
                          return rank == 0 ? at::zeros_like(inputs[0])
                                           : inputs[static_cast<std::size_t>(rank) - 1];
                        }},
                   size,
                   {3, 5});
  }
}

TEST(Shift, GoesToThePreviousRankAndItsGradientBack) {
  for (int size = 2; size <= 4; ++size) {
    expect_meaning({.operation = shift_to_previous,
                    .model =
                        [](const Tensors& inputs, int rank) {
                          const auto next = static_cast<std::size_t>(rank) + 1;
                          return next == inputs.size() ? at::zeros_like(inputs[0]) : inputs[next];
                        }},
                   size,
                   {3, 5});
  }
}

TEST(Shift, GivesZerosOnAGroupOfOne) {
  const auto group = World::single()->all();
  const auto tensor = at::ones({2}).requires_grad_();
  for (const auto& result : {shift_to_next(tensor, group), shift_to_previous(tensor, group)}) {
    EXPECT_TRUE(at::equal(result, at::zeros({2})));
    EXPECT_FALSE(result.requires_grad());
  }
}

TEST(Differentiable, GivesTheTensorItselfOnAGroupOfOne) {
  const auto group = World::single()->all();
  const auto tensor = at::ones({2, 2}).requires_grad_();
  EXPECT_TRUE(copy_to_group(tensor, group).is_same(tensor));
  EXPECT_TRUE(reduce_from_group(tensor, group).is_same(tensor));
  EXPECT_TRUE(scatter_to_group(tensor, 0, group).is_same(tensor));
  EXPECT_TRUE(gather_from_group(tensor, 0, group).is_same(tensor));
  EXPECT_TRUE(gather_to_group(tensor, 0, group).is_same(tensor));
  EXPECT_TRUE(reduce_scatter_from_group(tensor, 0, group).is_same(tensor));
}

TEST(Differentiable, HaloExchangeEqualsOneProcess) {
  // A row is cut into strips; each point adds its neighbours, and the loss is not linear.
  const int64_t width = 5;
  for (int size = 1; size <= 4; ++size) {
    const auto whole = at::linspace(-1, 2, size * width, at::kDouble).requires_grad_();
    const auto padded = at::constant_pad_nd(whole, {1, 1});
    const auto blurred = padded.slice(0, 0, -2) + 2 * padded.slice(0, 1, -1) + padded.slice(0, 2);
    blurred.sin().square().sum().backward();

    run_thread_ranks(size, [&](const std::shared_ptr<World>& world) {
      const auto group = world->all();
      const auto begin = world->rank() * width;
      const auto strip = whole.detach().slice(0, begin, begin + width).clone().requires_grad_();
      const auto left = shift_to_next(strip.slice(0, width - 1), group);
      const auto right = shift_to_previous(strip.slice(0, 0, 1), group);
      const auto wide = at::cat({left, strip, right});
      const auto own = wide.slice(0, 0, -2) + 2 * wide.slice(0, 1, -1) + wide.slice(0, 2);
      own.sin().square().sum().backward();
      // The same sums of at most 4 terms in another order: a few units in the last place.
      EXPECT_LT(
          (strip.grad() - whole.grad().slice(0, begin, begin + width)).abs().max().item<double>(),
          1e-14);
    });
  }
}

TEST(Differentiable, SplitLayerEqualsOneProcess) {
  // Columns of the first weight and rows of the second on each rank.
  const int64_t hidden = 12;
  const auto input = numbers({4, 6}, 1) / 8;
  const auto first = (numbers({6, hidden}, 2) / 8).requires_grad_();
  const auto second = (numbers({hidden, 3}, 3) / 8).requires_grad_();
  const auto leaf = input.clone().requires_grad_();
  const auto expected = leaf.mm(first).tanh().mm(second).square().sum();
  expected.backward();
  for (int size = 1; size <= 4; ++size) {
    run_thread_ranks(size, [&](const std::shared_ptr<World>& world) {
      const auto group = world->all();
      const auto mine = input.clone().requires_grad_();
      const auto one = part_of(first.detach(), size, group.rank(), 1).clone().requires_grad_();
      const auto two = part_of(second.detach(), size, group.rank(), 0).clone().requires_grad_();
      const auto result =
          reduce_from_group(copy_to_group(mine, group).mm(one).tanh().mm(two), group);
      const auto loss = result.square().sum();
      loss.backward();
      // Sums of at most 12 terms of size below 10 in another order: 12 * 10 * 2^-53 = 1.3e-14,
      // through two products.
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-11);
      EXPECT_TRUE(at::allclose(mine.grad(), leaf.grad(), 0, 1e-12));
      EXPECT_TRUE(at::allclose(one.grad(), part_of(first.grad(), size, group.rank(), 1), 0, 1e-12));
      EXPECT_TRUE(
          at::allclose(two.grad(), part_of(second.grad(), size, group.rank(), 0), 0, 1e-12));
    });
  }
}

TEST(Differentiable, LeavesDoNotShareTheMemoryOfTheirGradients) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto group = world->all();
    // An addition gives both terms one gradient.
    const auto check = [](const std::function<at::Tensor(const at::Tensor&)>& operation) {
      const auto first = at::ones({2, 2}, at::kDouble).requires_grad_();
      const auto second = at::ones({2, 2}, at::kDouble).requires_grad_();
      const auto result = operation(first) + operation(second);
      result.backward(at::ones_like(result));
      EXPECT_FALSE(first.grad().is_alias_of(second.grad()));
    };
    check([&](const auto& tensor) { return reduce_from_group(tensor, group); });
    check([&](const auto& tensor) { return copy_to_group(tensor, group); });
    check([&](const auto& tensor) { return gather_from_group(tensor, 0, group); });
  });
}

TEST(Differentiable, RecordsNothingForATensorWithoutGradient) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto tensor = at::ones({2, 2});
    EXPECT_FALSE(copy_to_group(tensor, world->all()).requires_grad());
    EXPECT_FALSE(gather_to_group(tensor, 0, world->all()).requires_grad());
  });
}

TEST(Differentiable, RefusesASecondDerivative) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto leaf = at::ones({2}, at::kDouble).requires_grad_();
    const auto loss = reduce_from_group(leaf, world->all()).pow(3).sum();
    const auto gradient = torch::autograd::grad({loss}, {leaf}, {}, true, true)[0];
    EXPECT_EQ(gradient.sum().item<double>(), 24);
    expect_parts(error_text<std::exception>([&] { gradient.sum().backward(); }),
                 {"no second derivative"});
  });
}

TEST(Differentiable, RefusesDimsThatCannotBe) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto group = world->all();
    const auto tensor = at::ones({3, 2});
    expect_parts(error_text<ConfigError>([&] { (void)scatter_to_group(tensor, 0, group); }),
                 {"scatter_to_group", "dim 0", "[3, 2]", "2 equal parts", "world {0, 1}"});
    EXPECT_THROW((void)reduce_scatter_from_group(tensor, -2, group), ConfigError);
    expect_parts(error_text<ConfigError>([&] { (void)gather_from_group(tensor, 2, group); }),
                 {"gather_from_group", "no dim 2"});
    EXPECT_THROW((void)gather_to_group(at::ones({}), 0, group), ConfigError);
  });
}

TEST(CopyToGroup, RefusesAParameterThatIsMarkedAsShared) {
  for (int size = 1; size <= 2; ++size) {
    run_thread_ranks(size, [](const std::shared_ptr<World>& world) {
      const auto weight = at::ones({2}).requires_grad_();
      mark_placement(weight, "data", replicated());
      EXPECT_EQ(copy_to_group(weight, world->all()).numel(), 2);
      mark_as_shared(weight, "model");
      expect_parts(error_text<ConfigError>([&] { (void)copy_to_group(weight, world->all()); }),
                   {"copy_to_group", "\"model\"", "a second time"});
    });
  }
}

}  // namespace
}  // namespace fulmen
