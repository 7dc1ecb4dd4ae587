#include "fulmen/core/checkpoint/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "core/checkpoint/crc32.h"
#include "core/checkpoint/input_file.h"
#include "core/checkpoint/safetensors_header.h"
#include "core/checkpoint/temporary.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

/// Small enough that the checksum finds the bytes in the cache.
constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;

at::Tensor on_cpu(const at::Tensor& tensor) {
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

std::uint32_t write_in_chunks(WritableFile& file, const char* data, std::uint64_t size) {
  detail::Crc32 crc;
  while (size > 0) {
    const auto count = static_cast<std::size_t>(std::min(size, kChunk));
    crc.add(data, count);
    file.write(data, count);
    data += count;
    size -= count;
  }
  return crc.value();
}

/// A file whose header was read and checked.
class OpenSafetensors {
 public:
  explicit OpenSafetensors(const std::filesystem::path& path) : file_(path), where_(path.string()) {
    std::uint64_t length = 0;
    if (file_.size() < sizeof length) {
      fail<CheckpointError>(where_,
                            "is ",
                            file_.size(),
                            " bytes long, too short for a safetensors "
                            "file. It is truncated, or another kind of file.");
    }
    file_.read_at(&length, sizeof length, 0);
    if (length > detail::kMaxSafetensorsHeader || length > file_.size() - sizeof length) {
      fail<CheckpointError>(where_,
                            "says that its header is ",
                            length,
                            " bytes long; the file has ",
                            file_.size(),
                            " bytes and a header at most ",
                            detail::kMaxSafetensorsHeader,
                            ". It is truncated, or another kind of file.");
    }
    text_.resize(sizeof length + static_cast<std::size_t>(length));
    file_.read_at(text_.data(), text_.size(), 0);
    header_ = detail::parse_safetensors_header(
        std::string_view(text_).substr(sizeof length), file_.size() - text_.size(), where_);
    header_.data_begin = text_.size();
  }

  const SafetensorsHeader& header() const { return header_; }

  /// What can be compared before any data is read.
  void check_header(const SafetensorsChecksums& expected) const {
    if (file_.size() != expected.size) {
      fail<CheckpointError>(
          where_,
          "is ",
          file_.size(),
          " bytes long, but ",
          expected.size,
          " were written: it is truncated or was changed. Use another checkpoint.");
    }
    if (detail::crc32_of(text_.data(), text_.size()) != expected.header) {
      fail<CheckpointError>(where_,
                            "its header has another checksum than when it was written: it is "
                            "damaged. Use another checkpoint.");
    }
  }

  at::Tensor read(const std::string& name, const SafetensorsChecksums* expected) const {
    const SafetensorsEntry& entry = header_.tensors.at(name);
    at::Tensor tensor = at::empty(entry.shape, at::TensorOptions().dtype(entry.dtype));
    auto* data = static_cast<char*>(entry.begin == entry.end ? nullptr : tensor.mutable_data_ptr());
    detail::Crc32 crc;
    for (std::uint64_t at = entry.begin; at < entry.end;) {
      const auto count = static_cast<std::size_t>(std::min(entry.end - at, kChunk));
      file_.read_at(data, count, header_.data_begin + at);
      if (expected != nullptr) crc.add(data, count);
      if (entry.dtype == c10::ScalarType::Bool) refuse_other_than_0_and_1(data, count, name);
      data += count;
      at += count;
    }
    if (expected != nullptr) check(name, crc.value(), *expected);
    return tensor;
  }

  void verify(const std::string& name, const SafetensorsChecksums& expected) const {
    const SafetensorsEntry& entry = header_.tensors.at(name);
    std::vector<char> chunk(static_cast<std::size_t>(std::min(entry.end - entry.begin, kChunk)));
    detail::Crc32 crc;
    for (std::uint64_t at = entry.begin; at < entry.end; at += chunk.size()) {
      const auto count =
          static_cast<std::size_t>(std::min<std::uint64_t>(entry.end - at, chunk.size()));
      file_.read_at(chunk.data(), count, header_.data_begin + at);
      crc.add(chunk.data(), count);
    }
    check(name, crc.value(), expected);
  }

 private:
  void refuse_other_than_0_and_1(const char* data,
                                 std::size_t size,
                                 const std::string& name) const {
    if (std::all_of(data, data + size, [](char byte) { return byte == 0 || byte == 1; })) return;
    fail<CheckpointError>(where_,
                          "the tensor '",
                          name,
                          "' is BOOL but holds a byte that is neither "
                          "0 nor 1. The file is damaged.");
  }

  void check(const std::string& name,
             std::uint32_t crc,
             const SafetensorsChecksums& expected) const {
    const auto found = expected.tensors.find(name);
    if (found != expected.tensors.end() && found->second == crc) return;
    fail<CheckpointError>(where_,
                          "the data of the tensor '",
                          name,
                          "' has another checksum than when it was written: it is damaged. Use "
                          "another checkpoint.");
  }

  detail::InputFile file_;
  std::string where_;
  std::string text_;
  SafetensorsHeader header_;
};

TensorMap read_all(const OpenSafetensors& file, const SafetensorsChecksums* expected) {
  TensorMap tensors;
  for (const auto& [name, entry] : file.header().tensors) {
    tensors.emplace(name, file.read(name, expected));
  }
  return tensors;
}

}  // namespace

SafetensorsChecksums write_safetensors(WritableFile& file,
                                       const TensorMap& tensors,
                                       const SafetensorsMetadata& metadata) {
  SafetensorsHeader layout;
  const std::string header = detail::make_safetensors_header(tensors, metadata, layout);
  SafetensorsChecksums result;
  result.size = header.size();
  result.header = detail::crc32_of(header.data(), header.size());
  file.write(header.data(), header.size());

  std::vector<std::pair<std::uint64_t, const std::string*>> order;
  for (const auto& [name, entry] : layout.tensors) {
    if (entry.begin == entry.end) {
      result.tensors[name] = detail::Crc32().value();
    } else {
      order.emplace_back(entry.begin, &name);
    }
  }
  std::sort(order.begin(), order.end());
  for (const auto& [begin, name] : order) {
    const at::Tensor tensor = on_cpu(tensors.at(*name));
    const std::uint64_t size = tensor.nbytes();
    result.tensors[*name] =
        write_in_chunks(file, static_cast<const char*>(tensor.const_data_ptr()), size);
    result.size += size;
  }
  return result;
}

void write_safetensors(const std::filesystem::path& path,
                       const TensorMap& tensors,
                       const SafetensorsMetadata& metadata,
                       FileSystem& file_system) {
  detail::replace_file(
      path, file_system, [&](WritableFile& file) { write_safetensors(file, tensors, metadata); });
}

SafetensorsHeader read_safetensors_header(const std::filesystem::path& path) {
  return OpenSafetensors(path).header();
}

TensorMap read_safetensors(const std::filesystem::path& path) {
  return read_all(OpenSafetensors(path), nullptr);
}

TensorMap read_safetensors(const std::filesystem::path& path,
                           const SafetensorsChecksums& expected) {
  const OpenSafetensors file(path);
  file.check_header(expected);
  return read_all(file, &expected);
}

void verify_safetensors(const std::filesystem::path& path, const SafetensorsChecksums& expected) {
  const OpenSafetensors file(path);
  file.check_header(expected);
  for (const auto& [name, entry] : file.header().tensors) file.verify(name, expected);
}

}  // namespace fulmen
