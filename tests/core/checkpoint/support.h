#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "fulmen/core/checkpoint/checkpoint.h"
#include "fulmen/core/support/error.h"

namespace fulmen {

enum class Medium { kDisk, kMemory };

/// A fresh directory that is removed at the end. In memory, if there is such a file system,
/// flushing costs nothing, which matters in loops.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(Medium medium = Medium::kDisk) {
    std::filesystem::path base = std::filesystem::temp_directory_path();
    if (medium == Medium::kMemory && ::access("/dev/shm", W_OK) == 0) base = "/dev/shm";
    std::string pattern = (base / "fulmen-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = pattern;
  }
  ~ScratchDirectory() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(std::string_view name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_bytes(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The text of the CheckpointError that `call` throws; empty, and a failure, if it throws none.
template <class Call>
std::string checkpoint_error(Call call) {
  try {
    call();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no CheckpointError was thrown";
  return "";
}

inline bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor left = a.contiguous();
  const at::Tensor right = b.contiguous();
  return left.numel() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

inline bool same_tensors(const TensorMap& a, const TensorMap& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](const auto& left, const auto& right) {
           return left.first == right.first && same_bytes(left.second, right.second);
         });
}

inline bool same_contents(const CheckpointContents& a, const CheckpointContents& b) {
  return same_tensors(a.model, b.model) && a.aliases == b.aliases &&
         same_tensors(a.optimizer, b.optimizer) && a.trainer == b.trainer &&
         same_tensors(a.rank_state, b.rank_state) && a.rank_values == b.rank_values;
}

/// A small checkpoint in which every value depends on `value`.
inline CheckpointContents sample_contents(double value) {
  CheckpointContents contents;
  contents.model["encoder.weight"] = torch::full({3, 4}, value);
  contents.model["encoder.bias"] = torch::full({3}, -value, torch::kFloat64);
  contents.aliases["decoder.weight"] = "encoder.weight";
  contents.optimizer["encoder.weight.exp_avg"] = torch::full({3, 4}, value / 3);
  contents.trainer = {{"step", static_cast<int>(value)}, {"lr", value / 7}};
  contents.rank_state["generator"] = torch::full({16}, value).to(torch::kUInt8);
  contents.rank_values = {{"samples", {1, 2, 3}}, {"value", value}};
  return contents;
}

#define EXPECT_HAS(text, part) \
  EXPECT_NE((text).find(part), std::string::npos) << "the text is: " << (text)

}  // namespace fulmen
