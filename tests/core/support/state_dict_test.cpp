#include "fulmen/core/support/state_dict.h"

#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

boost::json::object parse(const char* text) {
  return boost::json::parse(text).as_object();
}

template <class Read>
std::string message_of(Read read) {
  try {
    read();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

std::uint64_t bits(double value) {
  std::uint64_t result = 0;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

double through_text(double value) {
  return json_to_double(boost::json::parse(boost::json::serialize(double_to_json(value))), "test");
}

TEST(StateDict, ReadersReturnValuesOfTheirType) {
  const auto object =
      parse(R"({"i": -3, "d": 0.5, "b": true, "s": "x", "o": {"a": 1}, "l": [1, 2]})");
  EXPECT_EQ(require_int(object, "i", "t"), -3);
  EXPECT_EQ(require_double(object, "d", "t"), 0.5);
  EXPECT_EQ(require_double(object, "i", "t"), -3.0);
  EXPECT_TRUE(require_bool(object, "b", "t"));
  EXPECT_EQ(require_string(object, "s", "t"), "x");
  EXPECT_EQ(require_object(object, "o", "t").size(), 1u);
  EXPECT_EQ(require_array(object, "l", "t").size(), 2u);
}

TEST(StateDict, ReadersAcceptUnsignedIntegersOnlyUpToTheSignedMaximum) {
  boost::json::object object;
  object["fits"] = std::uint64_t{9223372036854775807u};
  object["more"] = std::uint64_t{9223372036854775808u};
  EXPECT_EQ(require_int(object, "fits", "t"), std::numeric_limits<std::int64_t>::max());
  EXPECT_THROW(require_int(object, "more", "t"), CheckpointError);
}

TEST(StateDict, ReadersNameOwnerAndKeyOfAMissingValue) {
  const auto object = parse("{}");
  const auto text = message_of([&] { require_int(object, "step", "AdamW"); });
  EXPECT_EQ(text.rfind("AdamW: ", 0), 0u) << text;
  EXPECT_NE(text.find("'step'"), std::string::npos) << text;
  EXPECT_NE(text.find("missing"), std::string::npos) << text;
  EXPECT_THROW(require_double(object, "step", "t"), CheckpointError);
  EXPECT_THROW(require_bool(object, "step", "t"), CheckpointError);
  EXPECT_THROW(require_string(object, "step", "t"), CheckpointError);
  EXPECT_THROW(require_object(object, "step", "t"), CheckpointError);
  EXPECT_THROW(require_array(object, "step", "t"), CheckpointError);
}

TEST(StateDict, ReadersRefuseAnotherType) {
  const auto object = parse(R"({"i": 1, "d": 1.5, "s": "x", "b": true, "n": null})");
  EXPECT_THROW(require_int(object, "d", "t"), CheckpointError);
  EXPECT_THROW(require_int(object, "b", "t"), CheckpointError);
  EXPECT_THROW(require_double(object, "s", "t"), CheckpointError);
  EXPECT_THROW(require_double(object, "n", "t"), CheckpointError);
  EXPECT_THROW(require_bool(object, "i", "t"), CheckpointError);
  EXPECT_THROW(require_string(object, "i", "t"), CheckpointError);
  EXPECT_THROW(require_object(object, "s", "t"), CheckpointError);
  EXPECT_THROW(require_array(object, "s", "t"), CheckpointError);
  const auto text = message_of([&] { require_double(object, "s", "Plateau"); });
  EXPECT_NE(text.find("Plateau, key 's'"), std::string::npos) << text;
  EXPECT_NE(text.find("\"x\""), std::string::npos) << text;
}

TEST(StateDict, DoublesAreBitwiseTheSameThroughText) {
  // 1.9379462044713822 is one of the numbers that Boost.JSON 1.81 reads as its neighbour.
  for (const double value : {0.0,
                             -0.0,
                             1.0,
                             0.1,
                             1e-3,
                             5e-324,
                             1.9379462044713822,
                             std::numeric_limits<double>::max(),
                             std::numeric_limits<double>::min()}) {
    EXPECT_EQ(bits(through_text(value)), bits(value)) << value;
  }
  std::mt19937_64 generator(7);
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t pattern = generator();
    double value = 0;
    std::memcpy(&value, &pattern, sizeof value);
    if (!std::isfinite(value)) continue;
    ASSERT_EQ(bits(through_text(value)), pattern) << value;
  }
}

TEST(StateDict, InfinitiesAndNanBecomeStrings) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(double_to_json(infinity), boost::json::value("inf"));
  EXPECT_EQ(double_to_json(-infinity), boost::json::value("-inf"));
  EXPECT_EQ(double_to_json(std::nan("")), boost::json::value("nan"));
  EXPECT_EQ(through_text(infinity), infinity);
  EXPECT_EQ(through_text(-infinity), -infinity);
  EXPECT_TRUE(std::isnan(through_text(std::nan(""))));
}

TEST(StateDict, StringsThatAreNoNumbersAreRefused) {
  for (const char* text : {"", "NaN", "+inf", "infinity", "1.5x", " 1.5", "1e999", "0x10"}) {
    EXPECT_THROW(json_to_double(text, "t"), CheckpointError) << text;
  }
}

}  // namespace
}  // namespace fulmen
