#include "tools/run/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace fulmen::detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

/// A coordinator whose time and nodes the test moves.
class Table {
 public:
  Table(int min, int max, int restarts = 0)
      : options_{.job = "job",
                 .min_nodes = min,
                 .max_nodes = max,
                 .max_restarts = restarts,
                 .join_timeout = seconds(60),
                 .last_call = seconds(3),
                 .shutdown_timeout = seconds(30),
                 .open_store =
                     [this] {
                       ++stores;
                       return RoundStore{.prefix = "prefix" + std::to_string(stores), .port = 99};
                     }},
        coordinator(options_, now_) {}

  void join(NodeId id, int ranks = 1, int order = kAnyOrder) {
    auto message = request(ranks, order);
    message.host = "host" + std::to_string(id);
    send(id, message);
  }
  Join request(int ranks = 1, int order = kAnyOrder) const {
    return {.job = "job",
            .min_nodes = options_.min_nodes,
            .max_nodes = options_.max_nodes,
            .max_restarts = options_.max_restarts,
            .ranks = ranks,
            .order = order,
            .host = "host"};
  }
  void send(NodeId id, const Message& message) {
    coordinator.on_message(id, message, now_);
    take();
  }
  void lose(NodeId id) {
    coordinator.on_lost(id, "gone", now_);
    take();
  }
  void pass(milliseconds time) {
    for (const auto end = now_ + time; now_ < end;) {
      now_ += milliseconds(100);
      coordinator.on_tick(now_);
      take();
    }
  }
  /// What the node was sent since the last call, if all is of this type.
  template <class T>
  std::vector<T> sent(NodeId id) {
    std::vector<T> result;
    for (const auto& message : std::exchange(messages_[id], {})) {
      const auto* one = std::get_if<T>(&message);
      EXPECT_NE(one, nullptr) << to_text(message);
      if (one != nullptr) result.push_back(*one);
    }
    return result;
  }
  StartRound started(NodeId id) {
    const auto all = sent<StartRound>(id);
    EXPECT_EQ(all.size(), 1U);
    return all.empty() ? StartRound{.round = -1} : all.front();
  }
  bool is_silent(NodeId id) { return messages_[id].empty(); }

  int stores = 0;

 private:
  void take() {
    for (auto& [to, message] : coordinator.take_outgoing())
      messages_[to].push_back(std::move(message));
  }

  CoordinatorOptions options_;
  Coordinator::Time now_{seconds(1000)};
  std::map<NodeId, std::vector<Message>> messages_;

 public:
  Coordinator coordinator;
};

TEST(Coordinator, StartsWhenAllNodesHaveComeAndNumbersTheRanks) {
  Table table(3, 3);
  table.join(1, 2);
  table.join(2, 1);
  table.pass(seconds(30));
  EXPECT_TRUE(table.is_silent(1));
  table.join(3, 4);
  const auto a = table.started(1);
  const auto b = table.started(2);
  const auto c = table.started(3);
  EXPECT_THAT((std::vector{a.node, b.node, c.node}), ElementsAre(0, 1, 2));
  EXPECT_THAT((std::vector{a.first_rank, b.first_rank, c.first_rank}), ElementsAre(0, 2, 3));
  EXPECT_THAT((std::vector{a.world_size, b.nodes, c.round}), ElementsAre(7, 3, 0));
  EXPECT_EQ(a.prefix, "prefix1");
  EXPECT_EQ(b.port, 99);
}

TEST(Coordinator, NumbersNodesAsTheyAskForAndTheServingOneFirst) {
  Table given(2, 2);
  given.join(1, 1, 1);
  given.join(2, 1, 0);
  EXPECT_EQ(given.started(1).node, 1);
  EXPECT_EQ(given.started(2).node, 0);
  Table serving(2, 2);
  serving.join(1);
  serving.join(2, 1, -1);
  EXPECT_EQ(serving.started(1).node, 1);
  EXPECT_EQ(serving.started(2).node, 0);
}

TEST(Coordinator, WaitsALittleForMoreThanTheLeastNumberOfNodes) {
  Table table(1, 3);
  table.join(1);
  table.pass(milliseconds(2500));
  table.join(2);
  EXPECT_TRUE(table.is_silent(1));
  table.pass(milliseconds(600));
  EXPECT_EQ(table.started(1).nodes, 2);
  EXPECT_EQ(table.started(2).nodes, 2);
}

TEST(Coordinator, EndsWithZeroWhenAllRanksHave) {
  Table table(2, 2);
  table.join(1);
  table.join(2);
  table.started(1);
  table.started(2);
  table.send(1, RoundDone{.round = 0});
  EXPECT_FALSE(table.coordinator.result());
  table.send(2, RoundDone{.round = 7});  // Of another round: counts nothing.
  EXPECT_FALSE(table.coordinator.result());
  table.send(2, RoundDone{.round = 0});
  ASSERT_TRUE(table.coordinator.result());
  EXPECT_EQ(table.coordinator.result()->code, 0);
  EXPECT_THAT(table.sent<EndJob>(1), SizeIs(1));
  EXPECT_THAT(table.sent<EndJob>(2), SizeIs(1));
}

TEST(Coordinator, ForgivesTheLossOfANodeThatHadFinished) {
  Table table(2, 2);
  table.join(1);
  table.join(2);
  table.send(1, RoundDone{.round = 0});
  table.lose(1);
  EXPECT_FALSE(table.coordinator.result());
  table.send(2, RoundDone{.round = 0});
  ASSERT_TRUE(table.coordinator.result());
  EXPECT_EQ(table.coordinator.result()->code, 0);
}

TEST(Coordinator, StartsAllAgainWithNewKeysAfterAFailure) {
  Table table(2, 2, 1);
  table.join(1, 2);
  table.join(2, 2);
  table.started(1);
  table.started(2);
  table.send(2, RankFailure{.round = 0, .rank = 3, .code = 7, .text = "rank 3 ended"});
  EXPECT_THAT(table.sent<StopRound>(1), SizeIs(1));
  EXPECT_THAT(table.sent<StopRound>(2), SizeIs(1));
  table.send(2, RoundStopped{.round = 0});
  table.pass(seconds(2));
  EXPECT_TRUE(table.is_silent(2)) << "the other node still has ranks";
  table.send(1, RoundStopped{.round = 0});
  const auto again = table.started(1);
  EXPECT_EQ(again.round, 1);
  EXPECT_EQ(again.restarts, 1);
  EXPECT_EQ(again.prefix, "prefix2");
  EXPECT_EQ(table.started(2).first_rank, 2);
}

TEST(Coordinator, EndsWithTheFirstFailureWhenNoRestartIsLeft) {
  Table table(2, 2);
  table.join(1);
  table.join(2);
  table.started(1);
  table.started(2);
  table.send(2,
             RankFailure{.round = 0,
                         .rank = 1,
                         .code = 7,
                         .text = "rank 1 ended with exit code 7",
                         .last_lines = "a\nb\n"});
  table.send(1, RankFailure{.round = 0, .rank = 0, .code = 9, .text = "rank 0 ended"});
  EXPECT_FALSE(table.coordinator.result()) << "ranks are left";
  table.send(1, RoundStopped{.round = 0});
  table.send(2, RoundStopped{.round = 0});
  ASSERT_TRUE(table.coordinator.result());
  EXPECT_EQ(table.coordinator.result()->code, 7);
  EXPECT_EQ(table.coordinator.result()->text,
            "error: node 1 (host2): rank 1 ended with exit code 7. Last lines of its standard "
            "error:\na\nb");
}

TEST(Coordinator, ShrinksWhenANodeIsLostAndGrowsWhenItIsBack) {
  Table table(1, 2, 1);
  table.join(1, 2);
  table.join(2, 2);
  table.started(1);
  table.started(2);
  table.lose(2);
  EXPECT_THAT(table.sent<StopRound>(1), SizeIs(1));
  table.send(1, RoundStopped{.round = 0});
  EXPECT_TRUE(table.is_silent(1)) << "the lost one may be back in a moment";
  table.pass(seconds(3));
  const auto small = table.started(1);
  EXPECT_EQ(small.world_size, 2);
  EXPECT_EQ(small.restarts, 1);
  table.join(3, 2);
  const auto stop = table.sent<StopRound>(1);
  ASSERT_THAT(stop, SizeIs(1));
  EXPECT_EQ(stop[0].grace_ms, 30'000) << "ranks may save what they have";
  table.send(1, RoundStopped{.round = 1});
  const auto large = table.started(1);
  EXPECT_EQ(large.world_size, 4);
  EXPECT_EQ(large.restarts, 1) << "nothing has failed";
  EXPECT_EQ(large.round, 2);
}

TEST(Coordinator, KeepsANodeTooManyInReserve) {
  Table table(2, 2, 1);
  table.join(1);
  table.join(2);
  table.started(1);
  table.join(3);
  EXPECT_TRUE(table.is_silent(1) && table.is_silent(3));
  table.lose(2);
  table.send(1, RoundStopped{.round = 0});
  EXPECT_EQ(table.started(3).node, 1);
}

TEST(Coordinator, NamesWhoIsMissing) {
  Table lost(2, 2, 1);
  lost.join(1);
  lost.join(2);
  lost.started(1);
  lost.lose(2);
  lost.sent<StopRound>(1);
  lost.send(1, RoundStopped{.round = 0});
  lost.pass(seconds(59));
  EXPECT_FALSE(lost.coordinator.result());
  lost.pass(seconds(2));
  ASSERT_TRUE(lost.coordinator.result());
  EXPECT_EQ(lost.coordinator.result()->code, 1);
  EXPECT_EQ(lost.coordinator.result()->text,
            "error: 1 node of at least 2 is here after 60.0 s (host1); missing: node 1 (host2), "
            "which was lost.");
  Table numbered(4, 4);
  numbered.join(1, 1, 0);
  numbered.join(2, 1, 2);
  numbered.pass(seconds(61));
  ASSERT_TRUE(numbered.coordinator.result());
  EXPECT_THAT(numbered.coordinator.result()->text,
              HasSubstr("missing: --node-rank 1, --node-rank 3."));
  Table unknown(3, 3);
  unknown.join(1, 1, -1);
  unknown.pass(seconds(61));
  EXPECT_THAT(unknown.coordinator.result().value_or(EndJob{}).text,
              HasSubstr("missing: 2 nodes that never came."));
}

TEST(Coordinator, HandsASignalToAllAndEndsWithIt) {
  Table table(2, 2, 5);
  table.join(1);
  table.join(2);
  table.started(1);
  table.started(2);
  table.send(2, SignalRanks{.number = SIGTERM});
  EXPECT_EQ(table.sent<SignalRanks>(1).at(0).number, SIGTERM);
  EXPECT_EQ(table.sent<SignalRanks>(2).at(0).number, SIGTERM);
  table.send(1, RankFailure{.round = 0, .code = 3});  // No failure any more.
  table.send(1, RoundStopped{.round = 0});
  EXPECT_FALSE(table.coordinator.result());
  table.send(2, RoundDone{.round = 0});
  ASSERT_TRUE(table.coordinator.result());
  EXPECT_EQ(table.coordinator.result()->code, 143);
  Table gathering(2, 2);
  gathering.join(1);
  gathering.send(1, SignalRanks{.number = SIGINT});
  EXPECT_EQ(gathering.coordinator.result().value_or(EndJob{}).code, 130);
}

TEST(Coordinator, DropsANodeThatDoesNotEndItsRanks) {
  Table table(1, 2, 1);
  table.join(1);
  table.join(2);
  table.started(1);
  table.started(2);
  table.send(1, RankFailure{.round = 0, .code = 3, .text = "rank 0 ended"});
  table.send(1, RoundStopped{.round = 0});
  table.sent<StopRound>(1);
  table.sent<StopRound>(2);
  table.pass(seconds(25));
  EXPECT_THAT(table.sent<Refusal>(2), SizeIs(1));
  EXPECT_EQ(table.started(1).world_size, 1);
}

TEST(Coordinator, RefusesNodesOfAnotherJobOrShape) {
  Table table(1, 2, 3);
  const auto refusal = [&](NodeId id, const Join& join) {
    table.send(id, join);
    const auto all = table.sent<Refusal>(id);
    return all.empty() ? std::string() : all.front().text;
  };
  auto join = table.request();
  join.job = "other";
  EXPECT_THAT(refusal(1, join), HasSubstr("--rdzv-id is other here, but job on the node"));
  join = table.request();
  join.max_nodes = 3;
  EXPECT_THAT(refusal(2, join), HasSubstr("--nnodes is 1:3 here, but 1:2"));
  join = table.request();
  join.max_restarts = 0;
  EXPECT_THAT(refusal(3, join), HasSubstr("--max-restarts is 0 here, but 3"));
  table.join(4, 1, 1);
  table.send(5, table.request(1, 1));
  const auto taken = table.sent<Refusal>(5);
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_TRUE(taken[0].again);
  EXPECT_THAT(taken[0].text, HasSubstr("--node-rank 1 is taken by host4"));
  table.send(6, RoundDone{.round = 0});
  EXPECT_THAT(table.sent<Refusal>(6), SizeIs(1));
}

TEST(Coordinator, GoesOnCountingWhereALostOneEnded) {
  Table table(2, 2, 3);
  auto join = table.request();
  join.rounds = 4;
  join.restarts = 2;
  table.send(1, join);
  table.join(2);
  const auto start = table.started(1);
  EXPECT_EQ(start.round, 4);
  EXPECT_EQ(start.restarts, 2);
}

TEST(Coordinator, SurvivesAnyOrderOfMessages) {
  // Whatever nodes say, and in whatever order, without any it ends.
  std::uint32_t state = 1;
  const auto next = [&state](std::uint32_t limit) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % limit;
  };
  for (int run = 0; run < 200; ++run) {
    Table table(1, 3, 2);
    for (int step = 0; step < 60 && !table.coordinator.result(); ++step) {
      const NodeId id = 1 + next(4);
      const int round = static_cast<int>(next(4));
      switch (next(8)) {
        case 0:
        case 1:
          table.join(id);
          break;
        case 2:
          table.lose(id);
          break;
        case 3:
          table.send(id, RankFailure{.round = round, .code = 1});
          break;
        case 4:
          table.send(id, RoundDone{.round = round});
          break;
        case 5:
        case 6:
          table.send(id, RoundStopped{.round = round});
          break;
        default:
          table.pass(seconds(next(8)));
      }
    }
    for (const NodeId id : {1, 2, 3, 4}) table.lose(id);
    table.pass(seconds(100));
    EXPECT_TRUE(table.coordinator.result()) << "run " << run;
  }
}

}  // namespace
}  // namespace fulmen::detail
