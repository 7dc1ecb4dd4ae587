#include <gtest/gtest.h>
#include <torch/torch.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <limits>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/core/distributed/rank_values.h"

namespace fulmen {
namespace {

namespace json = boost::json;
using testing::error_text;
using testing::expect_equal;
using testing::expect_parts;
using testing::on_ranks;
using testing::values;

TEST(BroadcastAll, TakesTensorsOfAllKinds) {
  on_ranks([](const ProcessGroup& group) {
    const auto make = [](int rank) {
      return std::vector<at::Tensor>{values(rank, {2, 3}),
                                     values(rank, {4}, at::kFloat),
                                     values(rank, {3, 2}).t(),
                                     at::zeros({0}),
                                     values(rank, {}, at::kLong),
                                     values(rank, {2}, at::kFloat).requires_grad_()};
    };
    const int root = group.size() - 1;
    const auto tensors = make(group.rank());
    const auto expected = make(root);
    broadcast_all(tensors, root, group);
    for (std::size_t i = 0; i < tensors.size(); ++i) expect_equal(tensors[i], expected[i]);
    const auto calls = group.counters().of(CollectiveKind::kBroadcast).calls;
    EXPECT_EQ(calls, group.size() == 1 ? 0 : 3);  // One for each dtype.
    broadcast_all({}, 0, group);
    EXPECT_EQ(group.counters().of(CollectiveKind::kBroadcast).calls, calls);
  });
}

TEST(BroadcastAll, JoinsNoMoreThan64MiB) {
  run_thread_ranks(2, [](const std::shared_ptr<World>& world) {
    const auto group = world->all();
    const int64_t mib = int64_t{1} << 20;
    std::vector<at::Tensor> tensors;
    for (const int64_t size : {40, 24, 1, 70, 1})
      tensors.push_back(at::full({size * mib}, group.rank() == 0 ? size : 0, at::kByte));
    broadcast_all(tensors, 0, group);
    for (const auto& tensor : tensors)
      EXPECT_TRUE(tensor.eq(tensor.numel() / mib).all().item<bool>());
    EXPECT_EQ(group.counters().of(CollectiveKind::kBroadcast).calls, 4);
  });
}

TEST(Objects, AreGatheredInOrderOfRank) {
  on_ranks([](const ProcessGroup& group) {
    const auto make = [](int rank) {
      return json::value{{"rank", rank},
                         {"text", std::string(static_cast<std::size_t>(rank) * 7, 'x')}};
    };
    const auto all = all_gather_object(make(group.rank()), group);
    ASSERT_EQ(std::ssize(all), group.size());
    for (int rank = 0; rank < group.size(); ++rank)
      EXPECT_EQ(all[static_cast<std::size_t>(rank)], make(rank));
    for (int root = 0; root < group.size(); ++root)
      EXPECT_EQ(broadcast_object(make(group.rank()), root, group), make(root));
    EXPECT_EQ(all_gather_object(nullptr, group)[0], nullptr);
  });
}

TEST(Objects, ThatAreSmallCostOneCollective) {
  run_thread_ranks(3, [](const std::shared_ptr<World>& world) {
    const auto group = world->all();
    // 4088 bytes fit, two of them quotation marks; rank 1 always has little.
    for (const int size : {0, 4085, 4086, 4087, 20000}) {
      const auto make = [&](int rank) {
        return json::value(std::string(rank == 1 ? 3 : static_cast<std::size_t>(size), 'a'));
      };
      const auto before = group.counters().total().calls;
      const auto all = all_gather_object(make(group.rank()), group);
      EXPECT_EQ(group.counters().total().calls - before, size <= 4086 ? 1 : 2) << size;
      for (int rank = 0; rank < group.size(); ++rank)
        EXPECT_EQ(all[static_cast<std::size_t>(rank)], make(rank)) << size;
    }
  });
}

TEST(Objects, ThatAreNotJsonFailOnAllRanks) {
  on_ranks(
      [](const ProcessGroup& group) {
        const json::value value =
            group.rank() == 0 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
        expect_parts(error_text<DistributedError>([&] { all_gather_object(value, group); }),
                     {"all_gather_object", "not JSON"});
        EXPECT_THROW(broadcast_object(value, 0, group), DistributedError);
        EXPECT_EQ(broadcast_object(value, 1, group), json::value(1.0));
      },
      2);
}

TEST(Bytes, AreGatheredOnTheRoot) {
  on_ranks([](const ProcessGroup& group) {
    // Nothing from rank 1, a zero byte in each other.
    const auto make = [](int rank) {
      return rank == 1 ? std::string()
                       : std::string(static_cast<std::size_t>(rank) + 1, '\0') + "x";
    };
    for (int root = 0; root < group.size(); ++root) {
      const auto parts = gather_bytes(make(group.rank()), root, group);
      if (group.rank() != root) {
        EXPECT_TRUE(parts.empty());
        continue;
      }
      ASSERT_EQ(std::ssize(parts), group.size());
      for (int rank = 0; rank < group.size(); ++rank)
        EXPECT_EQ(parts[static_cast<std::size_t>(rank)], make(rank));
    }
    EXPECT_THROW(gather_bytes("x", group.size(), group), ConfigError);
  });
}

TEST(Bytes, AreScatteredFromTheRoot) {
  on_ranks([](const ProcessGroup& group) {
    const auto make = [](int rank) {
      return rank == 1 ? std::string() : std::string("part\0", 5) + std::to_string(rank);
    };
    std::vector<std::string> parts;
    for (int rank = 0; rank < group.size(); ++rank) parts.push_back(make(rank));
    for (int root = 0; root < group.size(); ++root) {
      const auto part =
          scatter_bytes(group.rank() == root ? parts : std::vector<std::string>{}, root, group);
      EXPECT_EQ(part, make(group.rank()));
    }
    parts.emplace_back("one too many");
    if (group.rank() == 0) {
      expect_parts(error_text<ConfigError>([&] { scatter_bytes(parts, 0, group); }), {"got "});
    } else {
      EXPECT_THROW(scatter_bytes({}, 0, group), DistributedError);
    }
  });
}

TEST(Bytes, AreRefusedBeforeMemoryIsTakenForThem) {
  on_ranks(
      [](const ProcessGroup& group) {
        // Only the size of this view is read.
        const char byte = 'x';
        const std::size_t size = (std::size_t{1} << 30) + (group.rank() == 1 ? 1 : 0);
        expect_parts(error_text<DistributedError>(
                         [&] { gather_bytes(std::string_view(&byte, size), 0, group); }),
                     {"gather_bytes", "announced 1073741825 bytes", "at most 1073741824"});
      },
      2);
}

TEST(AgreeOrFail, CostsOneReductionWhereNobodyHasAProblem) {
  on_ranks([](const ProcessGroup& group) {
    agree_or_fail("check", "", group);
    EXPECT_EQ(group.counters().total().calls, group.size() == 1 ? 0 : 1);
    EXPECT_EQ(group.counters().of(CollectiveKind::kAllReduce).calls, group.size() == 1 ? 0 : 1);
  });
}

TEST(AgreeOrFail, ThrowsTheSameErrorOnEveryRank) {
  run_thread_ranks(4, [](const std::shared_ptr<World>& world) {
    const auto agree = [&](std::initializer_list<std::string_view> problems,
                           const ProcessGroup& group) {
      return error_text<DistributedError>(
          [&] { agree_or_fail("the check", problems.begin()[group.rank()], group); });
    };
    const auto all = world->all();
    EXPECT_EQ(agree({"", "zebra", "", "ape"}, all), "the check: rank 1: zebra; rank 3: ape");
    EXPECT_EQ(agree({"", "same", "other", "same"}, all),
              "the check: ranks 1, 3: same; rank 2: other");
    EXPECT_EQ(agree({"", "", "not UTF-8: \xff", ""}, all), "the check: rank 2: not UTF-8: \xff");
    const bool even = world->rank() % 2 == 0;
    const auto group = world->group(even ? std::vector<int>{0, 2} : std::vector<int>{1, 3}, "half");
    EXPECT_EQ(agree({"", "problem"}, group),
              even ? "the check: rank 2: problem" : "the check: rank 3: problem");
    EXPECT_EQ(agree({"problem"}, world->group({world->rank()}, "alone")), "the check: problem");
  });
}

}  // namespace
}  // namespace fulmen
