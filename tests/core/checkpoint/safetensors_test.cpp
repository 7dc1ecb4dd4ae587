#include "fulmen/core/checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <boost/crc.hpp>
#include <cstring>
#include <limits>
#include <random>

#include "tests/core/checkpoint/support.h"

namespace fulmen {
namespace {

constexpr c10::ScalarType kAllDtypes[] = {torch::kFloat64,
                                          torch::kFloat32,
                                          torch::kFloat16,
                                          torch::kBFloat16,
                                          torch::kInt64,
                                          torch::kInt32,
                                          torch::kInt16,
                                          torch::kInt8,
                                          torch::kUInt8,
                                          torch::kUInt16,
                                          torch::kUInt32,
                                          torch::kUInt64,
                                          torch::kBool,
                                          torch::kComplexFloat,
                                          torch::kFloat8_e4m3fn,
                                          torch::kFloat8_e5m2,
                                          torch::kFloat8_e8m0fnu,
                                          torch::kFloat8_e4m3fnuz,
                                          torch::kFloat8_e5m2fnuz};

/// Random bytes, so floating-point tensors also hold NaN of every kind.
at::Tensor random_tensor(at::IntArrayRef shape, c10::ScalarType dtype, std::mt19937& generator) {
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(dtype));
  auto* data = static_cast<unsigned char*>(tensor.mutable_data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) {
    data[i] = static_cast<unsigned char>(dtype == torch::kBool ? generator() % 2 : generator());
  }
  return tensor;
}

TEST(Safetensors, GivesBackEveryDtypeBitwise) {
  std::mt19937 generator(1);
  TensorMap tensors;
  for (const auto dtype : kAllDtypes) {
    tensors[std::string("t.") + c10::toString(dtype)] = random_tensor({3, 5}, dtype, generator);
  }
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a.safetensors", tensors, {{"who", "we"}});
  EXPECT_TRUE(same_tensors(read_safetensors(scratch / "a.safetensors"), tensors));
  const auto header = read_safetensors_header(scratch / "a.safetensors");
  EXPECT_EQ(header.metadata, (SafetensorsMetadata{{"who", "we"}}));
  EXPECT_EQ(header.tensors.at("t.BFloat16").dtype, torch::kBFloat16);
  EXPECT_EQ(header.tensors.at("t.BFloat16").shape, (std::vector<std::int64_t>{3, 5}));
}

TEST(Safetensors, GivesBackScalarsAndEmptyTensors) {
  const TensorMap tensors = {{"scalar", torch::tensor(2.5)},
                             {"none", torch::empty({0})},
                             {"rows", torch::empty({4, 0, 2}, torch::kInt64)},
                             {"z", torch::arange(3)}};
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a.safetensors", tensors);
  EXPECT_TRUE(same_tensors(read_safetensors(scratch / "a.safetensors"), tensors));
}

TEST(Safetensors, GivesBackAnEmptyMap) {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a.safetensors", {});
  EXPECT_TRUE(read_safetensors(scratch / "a.safetensors").empty());
}

TEST(Safetensors, StoresTheValuesOfViews) {
  const auto base = torch::arange(24, torch::kFloat32).view({4, 6});
  const auto complex = torch::randn({3}, torch::kComplexFloat);
  const TensorMap tensors = {{"transposed", base.t()},
                             {"strided", base.slice(1, 1, 6, 2)},
                             {"expanded", base.select(1, 0).unsqueeze(1).expand({4, 3})},
                             {"conjugate", complex.conj()},
                             {"negative", torch::imag(complex.conj())},
                             {"parameter", torch::ones({2}, torch::requires_grad())}};
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a.safetensors", tensors);
  const auto read = read_safetensors(scratch / "a.safetensors");
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(read.at(name).equal(tensor)) << name;
  EXPECT_FALSE(read.at("parameter").requires_grad());
  EXPECT_EQ(read_safetensors_header(scratch / "a.safetensors").tensors.at("strided").end -
                read_safetensors_header(scratch / "a.safetensors").tensors.at("strided").begin,
            4u * 3 * 4);
}

TEST(Safetensors, LaysTensorsOutAlignedAndPadsTheHeader) {
  const ScratchDirectory scratch;
  write_safetensors(scratch / "a.safetensors",
                    {{"a", torch::zeros({3}, torch::kUInt8)},
                     {"b", torch::zeros({3}, torch::kFloat64)},
                     {"c", torch::zeros({5}, torch::kFloat16)},
                     {"d", torch::zeros({1}, torch::kFloat32)}});
  const auto header = read_safetensors_header(scratch / "a.safetensors");
  EXPECT_EQ(header.data_begin % 8, 0u);
  for (const auto& [name, entry] : header.tensors) {
    EXPECT_EQ(entry.begin % c10::elementSize(entry.dtype), 0u) << name;
  }
  const std::string bytes = read_bytes(scratch / "a.safetensors");
  EXPECT_LT(bytes.find("\"a\""), bytes.find("\"b\""));
  EXPECT_LT(bytes.find("\"c\""), bytes.find("\"d\""));
}

TEST(Safetensors, ReplacesAnOlderFileInOneStep) {
  const ScratchDirectory scratch;
  const auto path = scratch / "a.safetensors";
  write_safetensors(path, {{"a", torch::zeros({2})}});
  EXPECT_THROW(write_safetensors(path, {{"a", at::Tensor()}}), CheckpointError);
  EXPECT_TRUE(read_safetensors(path).at("a").equal(torch::zeros({2})));
  write_safetensors(path, {{"a", torch::ones({2})}});
  EXPECT_TRUE(read_safetensors(path).at("a").equal(torch::ones({2})));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

TEST(Safetensors, ChecksumsCoverEveryByte) {
  const ScratchDirectory scratch;
  const auto path = scratch / "a.safetensors";
  const TensorMap tensors = {{"first", torch::randn({2, 2})}, {"second", torch::arange(2)}};
  const auto file = posix_file_system().create_file(path);
  const auto sums = write_safetensors(*file, tensors);
  file->close();
  EXPECT_TRUE(same_tensors(read_safetensors(path, sums), tensors));
  boost::crc_32_type crc;
  crc.process_bytes(tensors.at("first").const_data_ptr(), 16);
  EXPECT_EQ(sums.tensors.at("first"), crc.checksum());

  const std::string good = read_bytes(path);
  const auto header = read_safetensors_header(path);
  EXPECT_EQ(sums.size, good.size());
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    write_bytes(path, bad);
    const auto text = checkpoint_error([&] { read_safetensors(path, sums); });
    checkpoint_error([&] { verify_safetensors(path, sums); });
    if (i < header.data_begin) continue;
    const auto& second = header.tensors.at("second");
    const bool in_second =
        i - header.data_begin >= second.begin && i - header.data_begin < second.end;
    EXPECT_HAS(text, in_second ? "'second'" : "'first'");
    EXPECT_HAS(text, "checksum");
  }
}

TEST(Safetensors, WritesAndReadsTensorsOfManyChunks) {
  const ScratchDirectory scratch;
  const auto path = scratch / "a.safetensors";
  const TensorMap tensors = {{"large", torch::arange((1 << 20) + 3, torch::kInt32)}};
  const auto file = posix_file_system().create_file(path);
  const auto sums = write_safetensors(*file, tensors);
  file->close();
  EXPECT_TRUE(same_tensors(read_safetensors(path, sums), tensors));
  verify_safetensors(path, sums);
}

TEST(Safetensors, WriterRefusesTensorsThatTheFormatLacksAndNamesThem) {
  const ScratchDirectory scratch;
  const auto path = scratch / "a.safetensors";
  const auto refused = [&](const at::Tensor& tensor) {
    const auto text = checkpoint_error([&] { write_safetensors(path, {{"the.one", tensor}}); });
    EXPECT_HAS(text, "'the.one'");
    return text;
  };
  EXPECT_HAS(refused(at::Tensor()), "not defined");
  EXPECT_HAS(refused(torch::empty({2}, torch::kMeta)), "meta");
  EXPECT_HAS(refused(torch::zeros({2}, torch::kComplexDouble)), "ComplexDouble");
  EXPECT_HAS(refused(torch::eye(2).to_sparse()), "not dense");
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

TEST(Safetensors, WriterRefusesNamesThatAReaderWouldNotRead) {
  const ScratchDirectory scratch;
  const auto path = scratch / "a.safetensors";
  checkpoint_error([&] { write_safetensors(path, {{"__metadata__", torch::zeros({1})}}); });
  checkpoint_error([&] { write_safetensors(path, {{"bad \xff", torch::zeros({1})}}); });
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
  const TensorMap odd = {{"", torch::zeros({1})}, {"a \"b\"\n\\", torch::ones({1})}};
  write_safetensors(path, odd);
  EXPECT_TRUE(same_tensors(read_safetensors(path), odd));
}

TEST(Safetensors, WriterRefusesAHeaderOverTheLimitOfReaders) {
  const ScratchDirectory scratch;
  TensorMap tensors;
  for (int i = 0; i < 101; ++i) {
    tensors[std::to_string(i) + std::string(1'000'000, 'x')] = torch::empty({0});
  }
  const auto text =
      checkpoint_error([&] { write_safetensors(scratch / "a.safetensors", tensors); });
  EXPECT_HAS(text, "100000000");
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

}  // namespace
}  // namespace fulmen
