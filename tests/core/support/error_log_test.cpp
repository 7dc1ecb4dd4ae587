#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "fulmen/core/support/error.h"
#include "fulmen/core/support/log.h"

namespace fulmen {
namespace {

class Recorder : public LogSink {
 public:
  void write(LogLevel level, std::string_view line) override { lines.emplace_back(level, line); }

  std::vector<std::pair<LogLevel, std::string>> lines;
};

using Lines = std::vector<std::pair<LogLevel, std::string>>;

TEST(Fail, JoinsWhereAndParts) {
  try {
    fail<ConfigError>("AdamW", "lr must be greater than or equal to 0, got ", -0.5, ".");
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "AdamW: lr must be greater than or equal to 0, got -0.5.");
    return;
  }
  FAIL() << "fail() must throw";
}

template <class E>
void expect_own_kind() {
  EXPECT_THROW(fail<E>("x", "y"), E);
  static_assert(std::is_base_of_v<Error, E> && std::is_base_of_v<std::runtime_error, E>);
}

TEST(Fail, ThrowsEveryKindAsAnError) {
  expect_own_kind<ConfigError>();
  expect_own_kind<DataError>();
  expect_own_kind<CheckpointError>();
  expect_own_kind<TrainingError>();
  expect_own_kind<DistributedError>();
  static_assert(!std::is_base_of_v<ConfigError, DataError>);
}

TEST(Log, GivesLevelAndJoinedTextToItsSink) {
  const auto sink = std::make_shared<Recorder>();
  Log log(sink);
  log.info("epoch ", 3, " of ", 5);
  log.warning("w", 1);
  log.error("e", 2.5);
  EXPECT_EQ(sink->lines,
            (Lines{{LogLevel::kInfo, "epoch 3 of 5"},
                   {LogLevel::kWarning, "w1"},
                   {LogLevel::kError, "e2.5"}}));
}

TEST(Log, WarnsOnceForEachTextAndObject) {
  const auto sink = std::make_shared<Recorder>();
  Log log(sink);
  for (int i = 0; i < 3; ++i) {
    log.warning_once("few workers: ", 1);
    log.warning_once("few workers: ", 2);
  }
  EXPECT_EQ(
      sink->lines,
      (Lines{{LogLevel::kWarning, "few workers: 1"}, {LogLevel::kWarning, "few workers: 2"}}));
  Log other(sink);
  other.warning_once("few workers: ", 1);
  EXPECT_EQ(sink->lines.size(), 3U);
  log.warning("few workers: ", 1);
  EXPECT_EQ(sink->lines.size(), 4U) << "warning() does not remember";
}

TEST(Log, WithoutASinkWritesToStandardErrorWithPrefixes) {
  testing::internal::CaptureStderr();
  Log log;
  log.info("one");
  log.warning("two");
  log.error("three");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "one\nwarning: two\nerror: three\n");
}

}  // namespace
}  // namespace fulmen
