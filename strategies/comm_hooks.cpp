#include <torch/torch.h>

#include <vector>

#include "fulmen/core/support/error.h"
#include "fulmen/strategies/comm_hook.h"

namespace fulmen {
namespace {

class Compression final : public CommHook {
 public:
  explicit Compression(at::ScalarType dtype) : dtype_(dtype) {}

  void start(at::Tensor& bucket, int index, const ProcessGroup& group) override {
    if (bucket.is_complex()) {
      fail<ConfigError>("compress_to",
                        "cannot make ",
                        bucket.scalar_type(),
                        " gradients ",
                        dtype_,
                        ", which has no imaginary part. Leave out the comm_hook.");
    }
    auto& open = entry(index);
    open.bucket = bucket;
    // bfloat16 has the range of float32 and needs no room for the sum.
    open.divisor = dtype_ == at::kHalf ? group.size() : 1;
    if (!open.narrow.defined() || open.narrow.sizes() != bucket.sizes())
      open.narrow = at::empty(bucket.sizes(), bucket.options().dtype(dtype_));
    if (open.divisor == 1) {
      open.narrow.copy_(bucket);
    } else {
      at::div_out(open.narrow, bucket, at::scalar_tensor(open.divisor, bucket.options()));
    }
    open.work = all_reduce_async(open.narrow, ReduceOp::kSum, group);
  }

  void finish(int index) override {
    auto& open = entry(index);
    open.work.wait();
    open.bucket.copy_(open.narrow);
    if (open.divisor != 1) open.bucket.mul_(open.divisor);
    open.bucket.reset();
  }

 private:
  struct Open {
    at::Tensor bucket;
    at::Tensor narrow;  ///< Kept from step to step.
    double divisor = 1;
    Work work;
  };
  Open& entry(int index) {
    const auto i = static_cast<std::size_t>(index);
    if (i >= open_.size()) open_.resize(i + 1);
    return open_[i];
  }

  at::ScalarType dtype_;
  std::vector<Open> open_;
};

}  // namespace

std::shared_ptr<CommHook> compress_to(at::ScalarType dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16) {
    fail<ConfigError>("compress_to", "takes at::kHalf or at::kBFloat16, got ", dtype, ".");
  }
  return std::make_shared<Compression>(dtype);
}

}  // namespace fulmen
