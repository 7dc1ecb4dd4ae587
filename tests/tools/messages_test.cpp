#include "tools/run/messages.h"

#include <gtest/gtest.h>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

template <class T>
T round_trip(const T& message) {
  return std::get<T>(parse_message(to_text(message)));
}

TEST(RunMessages, ComeBackAsTheyWere) {
  const auto join = round_trip(Join{.job = "a job",
                                    .min_nodes = 1,
                                    .max_nodes = 4,
                                    .max_restarts = 3,
                                    .ranks = 2,
                                    .order = -1,
                                    .host = "host \"b\"",
                                    .rounds = 5,
                                    .restarts = 2});
  EXPECT_EQ(join.job, "a job");
  EXPECT_EQ(join.max_nodes, 4);
  EXPECT_EQ(join.max_restarts, 3);
  EXPECT_EQ(join.ranks, 2);
  EXPECT_EQ(join.order, -1);
  EXPECT_EQ(join.host, "host \"b\"");
  EXPECT_EQ(join.rounds, 5);
  EXPECT_EQ(join.restarts, 2);
  const auto start = round_trip(
      StartRound{.round = 7, .first_rank = 4, .world_size = 6, .prefix = "x", .port = 65535});
  EXPECT_EQ(start.round, 7);
  EXPECT_EQ(start.first_rank, 4);
  EXPECT_EQ(start.world_size, 6);
  EXPECT_EQ(start.prefix, "x");
  EXPECT_EQ(start.port, 65535);
  EXPECT_TRUE(round_trip(Refusal{.text = "no", .again = true}).again);
  EXPECT_EQ(round_trip(EndJob{.code = 143, .text = "t"}).code, 143);
  EXPECT_EQ(round_trip(SignalRanks{.number = 15}).number, 15);
  EXPECT_EQ(round_trip(RoundDone{.round = 3}).round, 3);
  round_trip(Beat{});
}

TEST(RunMessages, CarryWhatRanksWriteAndCutWhatIsTooLong) {
  const std::string bytes = "\xff\xfe\x01 not UTF-8";
  EXPECT_EQ(round_trip(RankFailure{.last_lines = bytes}).last_lines, bytes);
  const auto longest = to_text(RankFailure{.text = std::string(1 << 20, '\x01'),
                                           .last_lines = std::string(1 << 20, '\x01')});
  EXPECT_LE(longest.size(), kLongestMessage);
  EXPECT_GE(longest.size(), 8192U);
}

TEST(RunMessages, RefuseWhatIsNone) {
  for (const auto* text : {"",
                           "{",
                           "[]",
                           "3",
                           "{}",
                           R"({"type":3})",
                           R"({"type":"nonsense"})",
                           R"({"type":"signal"})",
                           R"({"type":"signal","number":0})",
                           R"({"type":"signal","number":65})",
                           R"({"type":"signal","number":"15"})",
                           R"({"type":"signal","number":1e9})",
                           R"({"type":"done","round":-1})",
                           R"({"type":"done","round":4294967296})",
                           R"({"type":"done","round":[[[[[[[[1]]]]]]]]})",
                           R"({"type":"done","round":1} more)"}) {
    EXPECT_THROW(parse_message(text), DistributedError) << text;
  }
}

}  // namespace
}  // namespace fulmen::detail
