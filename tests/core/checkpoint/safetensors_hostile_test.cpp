#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>

#include "fulmen/core/checkpoint/safetensors.h"
#include "tests/core/checkpoint/support.h"

namespace fulmen {
namespace {

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes;
}

std::string file_of(const std::string& header, std::size_t data_size) {
  return length_bytes(header.size()) + header + std::string(data_size, '\1');
}

class HostileSafetensors : public testing::Test {
 protected:
  std::string refused(const std::string& bytes) {
    write_bytes(path_, bytes);
    checkpoint_error([&] { read_safetensors_header(path_); });
    const auto text = checkpoint_error([&] { read_safetensors(path_); });
    EXPECT_HAS(text, path_.string());
    return text;
  }
  void accepted(const std::string& bytes) {
    write_bytes(path_, bytes);
    EXPECT_NO_THROW(read_safetensors(path_)) << bytes.substr(8);
  }

  ScratchDirectory scratch_;
  std::filesystem::path path_ = scratch_ / "a.safetensors";
};

TEST_F(HostileSafetensors, LengthsOverTheFileOrTheLimitAreRefused) {
  const std::string header = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})";
  for (const std::uint64_t length : {std::uint64_t{1} << 63,
                                     ~std::uint64_t{0},
                                     std::uint64_t{header.size() + 3},
                                     std::uint64_t{100'000'001}}) {
    EXPECT_HAS(refused(length_bytes(length) + header + "xx"), std::to_string(length));
  }
  accepted(file_of(header, 2));
}

TEST_F(HostileSafetensors, FilesThatAreTooShortAreRefused) {
  EXPECT_HAS(refused(""), "too short");
  EXPECT_HAS(refused("1234567"), "too short");
  refused(length_bytes(0));
}

TEST_F(HostileSafetensors, HeadersThatAreNotAnObjectAreRefused) {
  for (const char* header : {"[]",
                             "\"a\"",
                             "17",
                             "null",
                             " {}",
                             "{",
                             "{}}",
                             "{} x",
                             "",
                             "{\"a\":1}",
                             "{\"a\":[]}",
                             "{\"\xff\":{}}"}) {
    refused(file_of(header, 0));
  }
  accepted(file_of("{}", 0));
  accepted(file_of("{}      ", 0));
  refused(file_of(std::string(100'000, '['), 0));
  refused(file_of("{\"a\":" + std::string(100'000, '['), 0));
}

TEST_F(HostileSafetensors, OffsetsThatAreNotARangeInTheFileAreRefused) {
  for (const char* offsets : {"[0]",
                              "[0,4,8]",
                              "[]",
                              "0",
                              "[4,0]",
                              "[0,8]",
                              "[4,8]",
                              "[-4,0]",
                              "[0,4.0]",
                              "[0,\"4\"]",
                              "[0,18446744073709551615]",
                              "[18446744073709551612,18446744073709551615]",
                              "[0,99999999999999999999999]",
                              "null"}) {
    refused(file_of(
        std::string(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)") + offsets + "}}", 4));
  }
  accepted(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4));
}

TEST_F(HostileSafetensors, ShapesThatDoNotMatchTheDataAreRefused) {
  for (const char* shape : {"[1000,1000]",
                            "[2]",
                            "[0]",
                            "[-1]",
                            "[1.0]",
                            "[\"1\"]",
                            "1",
                            "null",
                            "[9223372036854775807]",
                            "[4294967296,4294967296]",
                            "[4294967296,4294967296,0]",
                            "[4611686018427387905]",
                            "[18446744073709551615]",
                            "[65536,65536,65536,65536]"}) {
    EXPECT_HAS(
        refused(file_of(
            std::string(R"({"a":{"dtype":"F32","data_offsets":[0,4],"shape":)") + shape + "}}", 4)),
        "'a'");
  }
  accepted(file_of(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4));
}

TEST_F(HostileSafetensors, UnknownDtypesAndKeysAreRefused) {
  for (const char* entry : {R"("dtype":"F128","shape":[1],"data_offsets":[0,4])",
                            R"("dtype":"","shape":[1],"data_offsets":[0,4])",
                            R"("dtype":4,"shape":[1],"data_offsets":[0,4])",
                            R"("shape":[1],"data_offsets":[0,4])",
                            R"("dtype":"F32","data_offsets":[0,4])",
                            R"("dtype":"F32","shape":[1])",
                            R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1)"}) {
    EXPECT_HAS(refused(file_of(std::string("{\"a\":{") + entry + "}}", 4)), "'a'");
  }
}

std::string two(int a_begin, int a_end, int b_begin, int b_end, std::size_t data_size) {
  const auto entry = [](int begin, int end) {
    return R"({"dtype":"U8","shape":[)" + std::to_string(end - begin) + R"(],"data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  return file_of("{\"a\":" + entry(a_begin, a_end) + ",\"b\":" + entry(b_begin, b_end) + "}",
                 data_size);
}

TEST_F(HostileSafetensors, OverlapsAreRefused) {
  EXPECT_HAS(refused(two(0, 4, 2, 6, 6)), "inside another tensor");
  EXPECT_HAS(refused(two(0, 4, 0, 4, 4)), "inside another tensor");
  EXPECT_HAS(refused(two(0, 4, 2, 2, 4)), "inside another tensor");
}

TEST_F(HostileSafetensors, HolesAreRefused) {
  EXPECT_HAS(refused(two(0, 4, 5, 6, 6)), "belong to no tensor");
  EXPECT_HAS(refused(two(1, 4, 4, 6, 6)), "belong to no tensor");
  EXPECT_HAS(refused(two(0, 4, 4, 6, 7)), "belong to no tensor");
  refused(file_of("{}", 1));
}

TEST_F(HostileSafetensors, TensorsInAnyOrderAreAccepted) {
  accepted(two(0, 4, 4, 6, 6));
  accepted(two(2, 6, 0, 2, 6));
  accepted(two(0, 4, 4, 4, 4));
  accepted(two(0, 0, 0, 4, 4));
}

TEST_F(HostileSafetensors, DuplicateKeysAreRefused) {
  const std::string entry = R"({"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_HAS(refused(file_of("{\"a\":" + entry + ",\"a\":" + entry + "}", 2)), "twice");
  EXPECT_HAS(refused(file_of("{\"a\":" + entry + ",\"\\u0061\":" + entry + "}", 2)), "twice");
  refused(file_of(R"({"a":{"dtype":"U8","shape":[9],"shape":[2],"data_offsets":[0,2]}})", 2));
  refused(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0));
}

TEST_F(HostileSafetensors, MetadataMayBeAbsentAndMustHoldStrings) {
  accepted(file_of(R"({"__metadata__":{}})", 0));
  accepted(file_of(R"({"__metadata__":{"a":"b"}})", 0));
  refused(file_of(R"({"__metadata__":{"a":1}})", 0));
  refused(file_of(R"({"__metadata__":[]})", 0));
}

TEST_F(HostileSafetensors, BoolsOtherThan0And1AreRefused) {
  const std::string header = R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})";
  accepted(file_of(header, 2));
  write_bytes(path_, length_bytes(header.size()) + header + "\1\2");
  EXPECT_HAS(checkpoint_error([&] { read_safetensors(path_); }), "'a'");
}

TEST_F(HostileSafetensors, FilesCutAtAnyByteAreRefused) {
  write_safetensors(path_, {{"a", torch::randn({4})}, {"b", torch::arange(3)}}, {{"k", "v"}});
  const std::string good = read_bytes(path_);
  for (std::size_t size = 0; size < good.size(); ++size) refused(good.substr(0, size));
  refused(good + "x");
}

TEST_F(HostileSafetensors, AnyChangedHeaderByteIsRefusedOrHarmless) {
  write_safetensors(path_, {{"a", torch::randn({4})}, {"b", torch::arange(3)}}, {{"k", "v"}});
  const std::string good = read_bytes(path_);
  const auto data_begin = read_safetensors_header(path_).data_begin;
  int refusals = 0;
  for (std::size_t i = 0; i < data_begin; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      write_bytes(path_, bad);
      try {
        for (const auto& [name, tensor] : read_safetensors(path_)) EXPECT_LE(tensor.nbytes(), 24u);
      } catch (const CheckpointError&) {
        ++refusals;
      }
    }
  }
  EXPECT_GT(refusals, static_cast<int>(data_begin) * 5);
}

TEST_F(HostileSafetensors, WhatIsNoFileIsRefused) {
  EXPECT_HAS(checkpoint_error([&] { read_safetensors(scratch_ / "absent"); }), "No such file");
  EXPECT_HAS(checkpoint_error([&] { read_safetensors(scratch_.path()); }), "not a regular file");
  EXPECT_HAS(checkpoint_error([&] { read_safetensors("/dev/zero"); }), "not a regular file");
}

}  // namespace
}  // namespace fulmen
