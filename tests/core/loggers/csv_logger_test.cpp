#include "fulmen/core/loggers/csv_logger.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <boost/json/parse.hpp>
#include <cmath>
#include <csignal>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <thread>

#include "core/loggers/csv_text.h"
#include "fulmen/core/support/error.h"
#include "tests/support/fake_trainer.h"

namespace fulmen {
namespace {

using std::filesystem::path;

std::string text_of(const path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(CSVLogger, WritesARowPerCallWithStepAndEpochFirst) {
  TemporaryDirectory folder;
  const auto logger = CSVLogger::make({.save_dir = folder.path()});
  logger->log_metrics({{"a_loss", 0.1}, {"epoch", 0}, {"z", 2}}, 0);
  logger->log_metrics({{"a_loss", 1.0 / 3}, {"epoch", 1}, {"z", -1e-300}}, 49);
  logger->save();
  EXPECT_EQ(text_of(folder.path() / "fulmen_logs" / "version_0" / "metrics.csv"),
            "step,epoch,a_loss,z\n"
            "0,0,0.1,2\n"
            "49,1,0.3333333333333333,-1e-300\n");
}

TEST(CSVLogger, ANewNameWidensTheFileAndOldRowsKeepTheirValues) {
  TemporaryDirectory folder;
  const auto logger = CSVLogger::make({.save_dir = folder.path()});
  logger->log_metrics({{"loss", 1}, {"epoch", 0}}, 0);
  logger->save();
  logger->log_metrics({{"acc", 0.5}}, 1);
  logger->log_metrics({{"loss", 3}}, 2);
  logger->save();
  EXPECT_EQ(text_of(logger->metrics_path()),
            "step,epoch,acc,loss\n"
            "0,0,,1\n"
            "1,,0.5,\n"
            "2,,,3\n");
}

TEST(CSVLogger, NotFiniteNumbersAndOddNamesSurvive) {
  TemporaryDirectory folder;
  const auto logger = CSVLogger::make({.save_dir = folder.path()});
  const double infinity = std::numeric_limits<double>::infinity();
  logger->log_metrics({{"a,b", std::nan("")}, {"say \"x\"", infinity}}, 0);
  logger->save();
  logger->log_metrics({{"new", -infinity}}, 1);
  logger->save();
  EXPECT_EQ(text_of(logger->metrics_path()),
            "step,\"a,b\",new,\"say \"\"x\"\"\"\n"
            "0,nan,,inf\n"
            "1,,-inf,\n");
}

TEST(CSVLogger, NumbersComeBackBitwise) {
  TemporaryDirectory folder;
  const auto logger = CSVLogger::make({.save_dir = folder.path()});
  const std::vector<double> values = {0.1, 1e22, 5e-324, 1.9379462044713822, 123456789.123456789};
  for (const double value : values) logger->log_metrics({{"v", value}}, 0);
  logger->save();
  const auto text = text_of(logger->metrics_path());
  const auto records = detail::split_csv_records(text);
  ASSERT_EQ(records.size(), values.size() + 1);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::strtod(detail::split_csv_record(records[i + 1])[1].c_str(), nullptr), values[i]);
  }
}

TEST(CSVLogger, HoldsRowsBackUntilFlushSaveOrCheckpoint) {
  TemporaryDirectory folder;
  const auto logger = CSVLogger::make({.save_dir = folder.path(), .flush_every_n = 3});
  const auto rows = [&] {
    return detail::split_csv_records(text_of(logger->metrics_path())).size();
  };
  logger->log_metrics({{"a", 1}}, 0);
  logger->log_metrics({{"a", 1}}, 1);
  EXPECT_EQ(rows(), 0u);
  logger->log_metrics({{"a", 1}}, 2);
  EXPECT_EQ(rows(), 4u);
  logger->log_metrics({{"a", 1}}, 3);
  logger->after_save_checkpoint("x");
  EXPECT_EQ(rows(), 5u);
  logger->log_metrics({{"a", 1}}, 4);
  logger->finalize(RunStatus::kFailed);
  EXPECT_EQ(rows(), 6u);
}

TEST(CSVLogger, NothingIsMadeBeforeItIsUsed) {
  TemporaryDirectory folder;
  const auto logger = CSVLogger::make({.save_dir = folder.path() / "logs"});
  logger->save();
  logger->finalize(RunStatus::kFinished);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "logs"));
}

TEST(CSVLogger, VersionIsOneMoreThanTheLargestAndNeverShared) {
  TemporaryDirectory folder;
  std::filesystem::create_directories(folder.path() / "fulmen_logs" / "version_7");
  std::filesystem::create_directories(folder.path() / "fulmen_logs" / "version_x9");
  std::vector<std::string> versions(16);
  std::vector<std::thread> threads;
  for (auto& version : versions) {
    threads.emplace_back(
        [&] { version = CSVLogger::make({.save_dir = folder.path()})->version(); });
  }
  for (auto& thread : threads) thread.join();
  const std::set<std::string> distinct(versions.begin(), versions.end());
  EXPECT_EQ(distinct.size(), versions.size());
  EXPECT_TRUE(distinct.contains("version_8"));
  EXPECT_FALSE(distinct.contains("version_7"));
}

TEST(CSVLogger, NameMayBeEmptyAndVersionGiven) {
  TemporaryDirectory folder;
  const auto logger = CSVLogger::make({.save_dir = folder.path(), .name = "", .version = "mine"});
  EXPECT_EQ(logger->log_dir(), folder.path() / "mine");
  EXPECT_EQ(logger->version(), "mine");
}

TEST(CSVLogger, AGivenVersionIsContinued) {
  TemporaryDirectory folder;
  const CSVLoggerOptions options{.save_dir = folder.path(), .version = "run"};
  {
    const auto first = CSVLogger::make(options);
    first->log_metrics({{"b", 1}, {"epoch", 0}}, 0);
    first->log_metrics({{"b", 2}, {"epoch", 0}}, 1);
  }
  // A row that a crash cut off.
  std::ofstream(folder.path() / "fulmen_logs" / "run" / "metrics.csv", std::ios::app) << "2,0,3";
  const auto second = CSVLogger::make(options);
  second->log_metrics({{"b", 2.5}, {"epoch", 0}}, 1);
  second->save();
  EXPECT_EQ(text_of(second->metrics_path()), "step,epoch,b\n0,0,1\n1,0,2\n1,0,2.5\n");
  second->log_metrics({{"a", 4}}, 2);
  second->save();
  EXPECT_EQ(text_of(second->metrics_path()), "step,epoch,a,b\n0,0,,1\n1,0,,2\n1,0,,2.5\n2,,4,\n");
}

TEST(CSVLogger, AForeignFileIsNotTouched) {
  TemporaryDirectory folder;
  const auto logger = CSVLogger::make({.save_dir = folder.path(), .version = "run"});
  std::ofstream(logger->metrics_path()) << "time,value\n1,2\n";
  logger->log_metrics({{"a", 1}}, 0);
  EXPECT_NE(message_of([&] { logger->save(); }).find("does not start with a 'step' column"),
            std::string::npos);
  EXPECT_EQ(text_of(logger->metrics_path()), "time,value\n1,2\n");
}

TEST(CSVLogger, HyperparametersAreJsonBesideTheMetrics) {
  TemporaryDirectory folder;
  const auto logger = CSVLogger::make({.save_dir = folder.path()});
  logger->log_hyperparameters(
      {{"lr", 0.1}, {"layers", boost::json::array{1, 2}}, {"say \"x\"", true}});
  const auto text = text_of(logger->log_dir() / "hparams.json");
  EXPECT_EQ(text, "{\n  \"lr\": 1E-1,\n  \"layers\": [1,2],\n  \"say \\\"x\\\"\": true\n}\n");
  EXPECT_EQ(boost::json::parse(text).as_object().at("lr").as_double(), 0.1);
  logger->log_hyperparameters({});
  EXPECT_EQ(boost::json::parse(text_of(logger->log_dir() / "hparams.json")).as_object().size(), 0u);
}

TEST(CSVLogger, AFolderThatCannotBeMadeIsAnErrorWithTheReason) {
  TemporaryDirectory folder;
  std::ofstream(folder.path() / "file") << "x";
  const auto logger = CSVLogger::make({.save_dir = folder.path() / "file"});
  const auto text = message_of([&] { logger->log_dir(); });
  EXPECT_NE(text.find("Not a directory"), std::string::npos) << text;
  EXPECT_NE(text.find((folder.path() / "file").string()), std::string::npos) << text;
}

/// Files of this process may not grow beyond `bytes`, as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(CSVLogger, AFullDiskIsAnErrorAndNoRowIsLostOrTwice) {
  TemporaryDirectory folder;
  const auto logger = CSVLogger::make({.save_dir = folder.path()});
  logger->log_metrics({{"a", 1}}, 0);
  logger->save();
  logger->log_metrics({{"a", 0.123456789}}, 1);
  logger->log_metrics({{"a", 0.987654321}}, 2);
  {
    const FileSizeLimit limit(20);
    const auto text = message_of([&] { logger->save(); });
    EXPECT_NE(text.find("cannot write"), std::string::npos) << text;
    EXPECT_NE(text.find("File too large"), std::string::npos) << text;
  }
  EXPECT_EQ(text_of(logger->metrics_path()), "step,a\n0,1\n");
  logger->log_metrics({{"b", 5}}, 3);
  {
    const FileSizeLimit limit(20);
    EXPECT_NE(message_of([&] { logger->save(); }), "");
  }
  EXPECT_EQ(text_of(logger->metrics_path()), "step,a\n0,1\n");
  logger->save();
  EXPECT_EQ(text_of(logger->metrics_path()),
            "step,a,b\n0,1,\n1,0.123456789,\n2,0.987654321,\n3,,5\n");
  EXPECT_FALSE(std::filesystem::exists(logger->metrics_path().string() + ".tmp"));
}

TEST(CSVLogger, BadOptionsAreRefused) {
  EXPECT_THROW(CSVLogger::make({.name = "a/b"}), ConfigError);
  EXPECT_THROW(CSVLogger::make({.name = ".."}), ConfigError);
  EXPECT_THROW(CSVLogger::make({.version = ""}), ConfigError);
  EXPECT_THROW(CSVLogger::make({.version = "../x"}), ConfigError);
  EXPECT_THROW(CSVLogger::make({.flush_every_n = 0}), ConfigError);
}

}  // namespace
}  // namespace fulmen
