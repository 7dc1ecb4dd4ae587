#include "core/data/batch_bytes.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::size_t kMostDims = 64;

/// Appends to a string, or counts only.
class Writer final : public BatchArchive {
 public:
  explicit Writer(std::string* bytes) : bytes_(bytes) {}
  bool reads() const override { return false; }
  void bytes(void* data, std::size_t size) override {
    size_ += size;
    if (bytes_ != nullptr) bytes_->append(static_cast<const char*>(data), size);
  }
  void tensor(at::Tensor& tensor) override {
    if (count(tensor.defined() ? 1 : 0) == 0) return;
    if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_nested()) {
      fail<ConfigError>("predict",
                        "a prediction holds a tensor of layout ",
                        tensor.layout(),
                        " and type ",
                        tensor.scalar_type(),
                        ", and only dense ones travel to rank 0. Make it dense in predict_step.");
    }
    count(static_cast<std::size_t>(tensor.scalar_type()));
    count(static_cast<std::size_t>(tensor.dim()));
    for (const auto size : tensor.sizes()) count(static_cast<std::size_t>(size));
    if (bytes_ == nullptr) {
      size_ += static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
      return;
    }
    const auto dense = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
    bytes_->append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  }
  std::size_t size() const { return size_; }

 private:
  std::string* bytes_;
  std::size_t size_ = 0;
};

class Reader final : public BatchArchive {
 public:
  explicit Reader(std::string_view& bytes) : bytes_(bytes) {}
  bool reads() const override { return true; }
  void bytes(void* data, std::size_t size) override {
    check(size <= bytes_.size());
    if (size > 0) std::memcpy(data, bytes_.data(), size);
    bytes_.remove_prefix(size);
  }
  void tensor(at::Tensor& tensor) override {
    tensor.reset();
    if (count(0) == 0) return;
    const auto type = count(0);
    const auto dims = count(0);
    check(type < static_cast<std::size_t>(at::ScalarType::NumOptions) && dims <= kMostDims);
    std::vector<std::int64_t> sizes(dims);
    auto most = bytes_.size();  // Elements that there can be; a size of 0 allows any others.
    for (auto& size : sizes) size = static_cast<std::int64_t>(count(0));
    for (const auto size : sizes) check(size >= 0);
    if (std::find(sizes.begin(), sizes.end(), 0) == sizes.end()) {
      for (const auto size : sizes) {
        check(static_cast<std::size_t>(size) <= most);
        most /= static_cast<std::size_t>(size);
      }
    }
    tensor = at::empty(sizes, static_cast<at::ScalarType>(type));
    bytes(tensor.mutable_data_ptr(), tensor.nbytes());
  }

 private:
  static void check(bool good) {
    if (good) return;
    fail<DistributedError>("predict",
                           "the bytes of a prediction of another rank end too early or are not ",
                           "those of this type. Do all ranks run the same program?");
  }

  std::string_view& bytes_;
};

}  // namespace

std::size_t count_bytes(BatchView batch) {
  Writer writer(nullptr);
  batch.exchange(writer);
  return writer.size();
}

void append_bytes(BatchView batch, std::string& bytes) {
  Writer writer(&bytes);
  batch.exchange(writer);
}

void take_bytes(std::string_view& bytes, BatchView batch) {
  Reader reader(bytes);
  batch.exchange(reader);
}

}  // namespace fulmen::detail
