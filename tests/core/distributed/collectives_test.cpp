#include "fulmen/core/distributed/collectives.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>

#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/core/distributed/rank_values.h"

namespace fulmen {
namespace {

using testing::error_text;
using testing::expect_equal;
using testing::expect_parts;
using testing::on_ranks;
using testing::stacked;
using testing::values;

at::Tensor reduced(const at::Tensor& stack, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return stack.sum(0);
    case ReduceOp::kMean:
      return stack.sum(0) / stack.size(0);
    case ReduceOp::kMin:
      return stack.amin(0);
    case ReduceOp::kMax:
      return stack.amax(0);
  }
  return {};
}

constexpr std::array kOps = {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kMin, ReduceOp::kMax};

TEST(AllReduce, ReducesOverTheGroup) {
  on_ranks([](const ProcessGroup& group) {
    for (const auto op : kOps) {
      auto tensor = values(group.rank(), {3, 2});
      const auto* memory = tensor.data_ptr();
      all_reduce(tensor, op, group);
      expect_equal(tensor, reduced(stacked(group.size(), {3, 2}), op));
      EXPECT_EQ(tensor.data_ptr(), memory);
    }
  });
}

TEST(AllReduce, TakesTensorsOfOtherDtypes) {
  on_ranks([](const ProcessGroup& group) {
    for (const auto dtype :
         {at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kChar}) {
      auto tensor = values(group.rank(), {5}, dtype);
      all_reduce(tensor, ReduceOp::kSum, group);
      expect_equal(tensor, stacked(group.size(), {5}, dtype).sum(0).to(dtype));
    }
    auto complex = at::complex(values(group.rank(), {4}), values(group.rank() + 1, {4}));
    all_reduce(complex, ReduceOp::kSum, group);
    auto imaginary = at::zeros({4}, at::kDouble);
    for (int rank = 0; rank < group.size(); ++rank) imaginary += values(rank + 1, {4});
    expect_equal(complex, at::complex(stacked(group.size(), {4}).sum(0), imaginary));
  });
}

TEST(AllReduce, SumsBoolsToABool) {
  on_ranks([](const ProcessGroup& group) {
    auto flags = at::zeros({3}, at::kBool);
    flags[0] = true;
    flags[1] = group.rank() == 0;
    all_reduce(flags, ReduceOp::kSum, group);
    expect_equal(flags, at::tensor({1, 1, 0}, at::kLong).to(at::kBool));
    EXPECT_EQ(flags.view(at::kByte).max().item<int>(), 1);
    all_reduce(flags, ReduceOp::kMin, group);
    expect_equal(flags, at::tensor({1, 1, 0}, at::kLong).to(at::kBool));
  });
}

TEST(AllReduce, TakesTensorsThatAreNotContiguousScalarOrEmpty) {
  on_ranks([](const ProcessGroup& group) {
    const auto whole = values(group.rank(), {4, 6});
    auto part = whole.t().slice(0, 1, 5, 2);
    const auto untouched = whole.select(1, 0).clone();
    all_reduce(part, ReduceOp::kSum, group);
    expect_equal(part, stacked(group.size(), {4, 6}).sum(0).t().slice(0, 1, 5, 2));
    expect_equal(whole.select(1, 1), part[0]);
    expect_equal(whole.select(1, 0), untouched);
    auto scalar = values(group.rank(), {});
    all_reduce(scalar, ReduceOp::kSum, group);
    expect_equal(scalar, stacked(group.size(), {}).sum(0));
    auto empty = at::zeros({0, 3});
    all_reduce(empty, ReduceOp::kMean, group);
    EXPECT_EQ(empty.numel(), 0);
  });
}

TEST(AllReduce, RecordsNoGraph) {
  on_ranks([](const ProcessGroup& group) {
    auto leaf = values(group.rank(), {3}).requires_grad_();
    all_reduce(leaf, ReduceOp::kMean, group);
    EXPECT_TRUE(leaf.is_leaf());
    expect_equal(leaf.detach(), reduced(stacked(group.size(), {3}), ReduceOp::kMean));
  });
}

TEST(AllReduce, RefusesOperationsThatADtypeDoesNotHave) {
  on_ranks([](const ProcessGroup& group) {
    auto whole = at::ones({2}, at::kLong);
    expect_parts(error_text<ConfigError>([&] { all_reduce(whole, ReduceOp::kMean, group); }),
                 {"kMean", "Long", "kSum"});
    auto complex = at::ones({2}, at::kComplexDouble);
    EXPECT_THROW(all_reduce(complex, ReduceOp::kMax, group), ConfigError);
    auto strided = at::ones({2, 3}).t();
    expect_parts(
        error_text<ConfigError>([&] { (void)all_reduce_async(strided, ReduceOp::kSum, group); }),
        {"contiguous", "[3, 2]"});
  });
}

TEST(AllReduceAsync, IsDoneAfterWait) {
  on_ranks([](const ProcessGroup& group) {
    auto first = values(group.rank(), {3});
    auto second = values(group.rank() + 1, {2});
    auto one = all_reduce_async(first, ReduceOp::kMean, group);
    auto two = all_reduce_async(second, ReduceOp::kMax, group);
    two.wait();
    one.wait();
    one.wait();  // A second time does nothing: the mean is not divided again.
    expect_equal(first, reduced(stacked(group.size(), {3}), ReduceOp::kMean));
    expect_equal(second, stacked(group.size() + 1, {2}).slice(0, 1).amax(0));
  });
  Work().wait();
}

TEST(AllGather, JoinsInOrderOfRank) {
  on_ranks([](const ProcessGroup& group) {
    expect_equal(all_gather(values(group.rank(), {2, 3}), group), stacked(group.size(), {2, 3}));
    expect_equal(all_gather(values(group.rank(), {3, 2}).t(), group),
                 stacked(group.size(), {3, 2}).transpose(1, 2));
    expect_equal(all_gather(values(group.rank(), {}), group), stacked(group.size(), {}));
    expect_equal(all_gather(values(group.rank(), {4}, at::kShort), group),
                 stacked(group.size(), {4}, at::kShort));
    EXPECT_EQ(all_gather(at::zeros({0, 2}), group).sizes(), at::IntArrayRef({group.size(), 0, 2}));
    const auto flags = all_gather(at::full({1}, group.rank() == 0, at::kBool), group);
    EXPECT_TRUE(flags[0].item<bool>());
    EXPECT_EQ(flags.sum().item<int64_t>(), 1);
    auto leaf = values(group.rank(), {2}).requires_grad_();
    EXPECT_FALSE(all_gather(leaf, group).requires_grad());
  });
}

TEST(AllGatherAsync, FillsTheOutput) {
  on_ranks([](const ProcessGroup& group) {
    auto output = at::zeros({2 * group.size(), 3}, at::kDouble);
    all_gather_async(output, values(group.rank(), {2, 3}), group).wait();
    expect_equal(output, stacked(group.size(), {2, 3}).flatten(0, 1));
    expect_parts(error_text<ConfigError>(
                     [&] { (void)all_gather_async(output, at::zeros({1}, at::kDouble), group); }),
                 {"output of " + std::to_string(group.size()) + " elements"});
  });
}

TEST(AllGatherRows, JoinsTensorsOfDifferentLengths) {
  on_ranks([](const ProcessGroup& group) {
    // No rows on rank 1.
    const auto rows = [](int rank) { return rank == 1 ? 0 : 3 - rank / 2; };
    std::vector<at::Tensor> expected;
    for (int rank = 0; rank < group.size(); ++rank)
      expected.push_back(values(rank, {rows(rank), 2}));
    expect_equal(all_gather_rows(values(group.rank(), {rows(group.rank()), 2}), group),
                 at::cat(expected));
    expect_equal(all_gather_rows(values(group.rank(), {2, 2}), group),
                 stacked(group.size(), {2, 2}).flatten(0, 1));
    EXPECT_EQ(all_gather_rows(at::zeros({0, 4}), group).sizes(), at::IntArrayRef({0, 4}));
    EXPECT_THROW(all_gather_rows(at::zeros({}), group), ConfigError);
  });
}

TEST(ReduceScatter, GivesEachRankItsPart) {
  on_ranks([](const ProcessGroup& group) {
    const int size = group.size();
    for (const auto op : kOps) {
      const auto part = reduce_scatter(values(group.rank(), {size, 2, 3}), op, group);
      expect_equal(part, reduced(stacked(size, {size, 2, 3}), op)[group.rank()]);
    }
    const auto strided = values(group.rank(), {2, size}).t();
    expect_equal(reduce_scatter(strided, ReduceOp::kSum, group),
                 stacked(size, {2, size}).sum(0).t()[group.rank()]);
    for (const auto dtype : {at::kBFloat16, at::kHalf, at::kLong}) {
      expect_equal(reduce_scatter(values(group.rank(), {size, 2}, dtype), ReduceOp::kSum, group),
                   stacked(size, {size, 2}, dtype).sum(0).to(dtype)[group.rank()]);
    }
    EXPECT_EQ(reduce_scatter(at::zeros({size, 0}), ReduceOp::kSum, group).numel(), 0);
    expect_parts(error_text<ConfigError>(
                     [&] { reduce_scatter(at::zeros({size + 1}), ReduceOp::kSum, group); }),
                 {"first dim of " + std::to_string(size), std::to_string(size + 1)});
    EXPECT_THROW(reduce_scatter(at::zeros({size}, at::kLong), ReduceOp::kMean, group), ConfigError);
  });
}

TEST(ReduceScatterAsync, FillsTheOutput) {
  on_ranks([](const ProcessGroup& group) {
    const int size = group.size();
    auto output = at::zeros({3}, at::kDouble);
    auto work =
        reduce_scatter_async(output, values(group.rank(), {3 * size}), ReduceOp::kMean, group);
    work.wait();
    work.wait();
    expect_equal(output, reduced(stacked(size, {size, 3}), ReduceOp::kMean)[group.rank()]);
    EXPECT_THROW((void)reduce_scatter_async(
                     output, at::zeros({3 * size + 1}, at::kDouble), ReduceOp::kSum, group),
                 ConfigError);
  });
}

TEST(AllToAll, GivesEachRankItsPartOfEveryRank) {
  on_ranks([](const ProcessGroup& group) {
    const int size = group.size();
    expect_equal(all_to_all(values(group.rank(), {size, 2}), group),
                 stacked(size, {size, 2}).select(1, group.rank()));
    const auto strided = values(group.rank(), {2, size}, at::kFloat).t();
    expect_equal(all_to_all(strided, group),
                 stacked(size, {2, size}, at::kFloat).transpose(1, 2).select(1, group.rank()));
    EXPECT_THROW(all_to_all(at::zeros({}), group), ConfigError);
  });
}

TEST(Broadcast, GivesTheRootsTensorToAll) {
  on_ranks([](const ProcessGroup& group) {
    for (int root = 0; root < group.size(); ++root) {
      auto tensor = values(group.rank(), {2, 3});
      broadcast(tensor, root, group);
      expect_equal(tensor, values(root, {2, 3}));
      auto strided = values(group.rank(), {2, 3}, at::kShort).t();
      broadcast(strided, root, group);
      expect_equal(strided, values(root, {2, 3}, at::kShort).t());
      auto scalar = at::full({}, group.rank() == root, at::kBool);
      broadcast_async(scalar, root, group).wait();
      EXPECT_TRUE(scalar.item<bool>());
    }
    auto tensor = at::zeros({1});
    expect_parts(error_text<ConfigError>([&] { broadcast(tensor, group.size(), group); }),
                 {"rank " + std::to_string(group.size()) + " is none of the group"});
    EXPECT_THROW(broadcast(tensor, -1, group), ConfigError);
  });
}

}  // namespace
}  // namespace fulmen
