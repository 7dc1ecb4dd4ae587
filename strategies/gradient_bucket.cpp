#include "strategies/gradient_bucket.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>

namespace fulmen::detail {
namespace {

/// The parameter's place in flat memory, with its strides, so that sums are of equal elements and
/// optimizers meet the layout that they know.
at::Tensor place_in(const at::Tensor& flat, const at::Tensor& parameter, std::int64_t begin) {
  if (parameter.is_non_overlapping_and_dense())
    return flat.as_strided(parameter.sizes(), parameter.strides(), begin);
  return flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
}

bool holds_weights(at::ScalarType dtype) {
  return dtype == at::kFloat || dtype == at::kDouble;
}

}  // namespace

WindowSlot::WindowSlot(at::Tensor memory)
    : memory_(std::move(memory)), host_(at::zeros({memory_.numel()}, at::kDouble)) {}

void WindowSlot::begin(const WindowVote& vote, int model_rank) {
  host_.zero_();
  model_rank_ = model_rank;
  auto* value = values();
  value[kWeight] = vote.weight.number;
  if (model_rank_ == 0) value[kFirstWeight] = vote.weight.number;
  value[kHasLoss] = vote.has_loss ? 1 : 0;
  value[kSkip] = vote.skip ? 1 : 0;
  value[kStop] = vote.stop ? 1 : 0;
  value[kFinish] = vote.finish ? 1 : 0;
  value[kValidate] = vote.validate ? 1 : 0;
  device_weight_ = vote.weight.tensor;
}

void WindowSlot::write() {
  memory_.copy_(host_);
  if (device_weight_.defined()) {
    memory_.narrow(0, kWeight, model_rank_ == 0 ? 2 : 1).add_(device_weight_.to(memory_.device()));
  }
  device_weight_.reset();
}

void WindowSlot::read() {
  host_.copy_(memory_);
}

bool WindowSlot::are_equal(double a, double b) const {
  const auto epsilon = memory_.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                            : std::numeric_limits<float>::epsilon();
  return std::abs(a - b) <= std::sqrt(epsilon) * std::abs(b);
}

WindowVerdict WindowSlot::verdict() const {
  const auto* value = values();
  return {.has_loss = value[kHasLoss] > 0,
          .skip = value[kSkip] > 0,
          .stop = value[kStop] > 0,
          .finish = value[kFinish] > 0,
          .validate = value[kValidate] > 0};
}

void divide(at::Tensor& values, double divisor) {
  const auto dtype = values.scalar_type();
  if (dtype == at::kBFloat16 || dtype == at::kHalf) {
    values.copy_(values.to(at::kFloat).div_(divisor));
  } else {
    values.div_(divisor);
  }
}

GradientBucket::GradientBucket(const std::vector<at::Tensor>& parameters, Options options)
    : options_(std::move(options)) {
  const auto memory = parameters.front().options().requires_grad(false);
  const auto dtype = parameters.front().scalar_type();
  const auto sum_dtype = at::isComplexType(dtype) ? dtype : options_.reduce_dtype.value_or(dtype);
  std::int64_t length = 0;
  for (const auto& parameter : parameters) length += parameter.numel();

  slot_rides_along_ = carries_slot() && holds_weights(sum_dtype) && options_.comm_hook == nullptr;
  flat_ =
      at::zeros({length + (slot_rides_along_ ? options_.slot_size : 0)}, memory.dtype(sum_dtype));
  sums_ = flat_.narrow(0, 0, length);
  gradients_ = sum_dtype == dtype ? sums_ : at::zeros({length}, memory);
  if (slot_rides_along_) {
    slot_ = WindowSlot(flat_.narrow(0, length, options_.slot_size));
  } else if (carries_slot()) {
    slot_ = WindowSlot(at::zeros({options_.slot_size}, memory.dtype(at::kDouble)));
  }
  std::int64_t begin = 0;
  for (const auto& parameter : parameters) {
    views_.push_back(place_in(gradients_, parameter, begin));
    begin += parameter.numel();
  }
}

void GradientBucket::start() {
  if (!sums_.is_same(gradients_)) sums_.copy_(gradients_);
  if (options_.comm_hook != nullptr) {
    auto bucket = sums_;
    options_.comm_hook->start(bucket, options_.index, group());
  } else {
    work_ = all_reduce_async(flat_, ReduceOp::kSum, group(), options_.label);
  }
  if (!carries_slot() || slot_rides_along_) return;
  auto numbers = slot_.memory();
  slot_work_ = all_reduce_async(numbers, ReduceOp::kSum, group(), "votes of the window");
}

void GradientBucket::wait() {
  if (options_.comm_hook != nullptr) {
    options_.comm_hook->finish(options_.index);
  } else {
    work_.wait();
  }
  slot_work_.wait();
  if (carries_slot()) slot_.read();
}

void GradientBucket::add(const std::vector<at::Tensor>& gradients) {
  auto more = at::zeros_like(sums_);
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < views_.size(); ++i) {
    if (gradients[i].defined()) place_in(more, views_[i], begin).copy_(gradients[i]);
    begin += views_[i].numel();
  }
  all_reduce(more, ReduceOp::kSum, group(), options_.label);
  sums_.add_(more);
}

void GradientBucket::deliver() {
  if (!sums_.is_same(gradients_)) gradients_.copy_(sums_);
}

}  // namespace fulmen::detail
