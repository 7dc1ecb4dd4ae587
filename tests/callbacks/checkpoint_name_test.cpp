#include "fulmen/callbacks/checkpoint_name.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using Insert = CheckpointNameTemplate::Insert;

std::string name(std::string_view text,
                 const std::map<std::string, double>& metrics = {},
                 Insert insert = Insert::kKeyAndValue) {
  return CheckpointNameTemplate(text, insert)
      .format(3, 70, [&](std::string_view key) -> std::optional<double> {
        const auto found = metrics.find(std::string(key));
        return found == metrics.end() ? std::nullopt : std::optional(found->second);
      });
}

std::string refusal(std::string_view text) {
  try {
    CheckpointNameTemplate{text};
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(CheckpointName, InsertsKeysUnlessToldNotTo) {
  EXPECT_EQ(name("{epoch}-{step}"), "epoch=3-step=70");
  EXPECT_EQ(name("{epoch}-{step}", {}, Insert::kValueOnly), "3-70");
  EXPECT_EQ(name("run_{epoch:02d}_x"), "run_epoch=03_x");
}

TEST(CheckpointName, FormatsValuesAsAsked) {
  const std::map<std::string, double> metrics = {{"loss", 0.12345}, {"low", -1.5}};
  EXPECT_EQ(name("{loss:.2f}", metrics), "loss=0.12");
  EXPECT_EQ(name("{loss}", metrics), "loss=0.12345");
  EXPECT_EQ(name("{loss:.1e}", metrics), "loss=1.2e-01");
  EXPECT_EQ(name("{loss:.3}", metrics), "loss=0.123");
  EXPECT_EQ(name("{low:08.2f}", metrics), "low=-0001.50");
  EXPECT_EQ(name("{step:6d}"), "step=____70");
  EXPECT_EQ(name("{step:06}"), "step=000070");
}

TEST(CheckpointName, NotANumberIsWrittenAsNan) {
  EXPECT_EQ(name("{loss:.2f}", {{"loss", std::nan("")}}), "loss=nan");
  EXPECT_EQ(name("{loss}", {{"loss", -std::numeric_limits<double>::infinity()}}), "loss=-inf");
}

// faults.md row 69.
TEST(CheckpointName, SlashInAMetricNameIsEscapedAndParsedBack) {
  const auto made = name("{epoch}-{val/loss:.2f}", {{"val/loss", 0.25}});
  EXPECT_EQ(made, "epoch=3-val%2Floss=0.25");
  EXPECT_EQ(made.find('/'), std::string::npos);
  const auto parsed = parse_checkpoint_name(made);
  EXPECT_EQ(parsed, (std::map<std::string, double>{{"epoch", 3}, {"val/loss", 0.25}}));
}

TEST(CheckpointName, ParsesNegativeNumbersExponentsVersionsAndOddKeys) {
  const std::map<std::string, double> metrics = {{"a-b=c%d", -2.5}, {"tiny", 1e-05}};
  const auto made = name("model-{a-b=c%d}-{tiny}-{step}", metrics) + "-v12";
  const auto parsed = parse_checkpoint_name(made);
  EXPECT_EQ(parsed,
            (std::map<std::string, double>{{"a-b=c%d", -2.5}, {"tiny", 1e-05}, {"step", 70}}))
      << made;
  EXPECT_EQ(parse_checkpoint_name("step=____70").at("step"), 70);
  EXPECT_TRUE(std::isnan(parse_checkpoint_name("loss=nan").at("loss")));
}

TEST(CheckpointName, EscapeIsUndoneForEveryByte) {
  std::string all;
  for (int c = 1; c < 256; ++c) all += static_cast<char>(c);
  EXPECT_EQ(unescape_metric_name(escape_metric_name(all)), all);
  EXPECT_EQ(unescape_metric_name("50%"), "50%");
  EXPECT_EQ(unescape_metric_name("%zz%2"), "%zz%2");
}

TEST(CheckpointName, NamesWithoutValuesParseToNothing) {
  for (const char* text : {"", "last", "=", "a=", "-=1x", "x=y"}) {
    EXPECT_TRUE(parse_checkpoint_name(text).empty()) << text;
  }
}

TEST(CheckpointName, UnknownMetricIsAnErrorAndNotZero) {
  try {
    name("{val_loss:.2f}");
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("'val_loss'"), std::string::npos) << error.what();
  }
}

TEST(CheckpointName, MalformedTemplatesAreRefusedWithTheReason) {
  EXPECT_NE(refusal("").find("is empty"), std::string::npos);
  EXPECT_NE(refusal(".hidden").find("starts with '.'"), std::string::npos);
  EXPECT_NE(refusal("..").find("starts with '.'"), std::string::npos);
  EXPECT_NE(refusal("last").find("pointer"), std::string::npos);
  EXPECT_NE(refusal("best").find("pointer"), std::string::npos);
  EXPECT_NE(refusal("a/{epoch}").find("dirpath"), std::string::npos);
  EXPECT_NE(refusal("{epoch").find("without '}'"), std::string::npos);
  EXPECT_NE(refusal("epoch}").find("without '{'"), std::string::npos);
  EXPECT_NE(refusal("{}").find("without a key"), std::string::npos);
  EXPECT_NE(refusal("{loss:.f}").find("no digits"), std::string::npos);
  EXPECT_NE(refusal("{loss:.2x}").find("a format that"), std::string::npos);
  EXPECT_NE(refusal("{loss:.2ff}").find("a format that"), std::string::npos);
  EXPECT_NE(refusal("{loss:d}").find("for epoch and step"), std::string::npos);
  EXPECT_NE(refusal("{step:.2}").find("integer"), std::string::npos);
  EXPECT_NE(refusal("{step:99999999999}").find("a format that"), std::string::npos);
  EXPECT_EQ(refusal("{epoch}-{val/loss:.2f}"), "");
}

TEST(CheckpointName, ListsTheMetricsItNeeds) {
  EXPECT_EQ(CheckpointNameTemplate("{epoch}-{a:.2f}-{step}{b}").metrics(),
            (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace fulmen
