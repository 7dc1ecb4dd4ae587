#include "core/distributed/collective_record.h"

#include <torch/torch.h>

#include <algorithm>
#include <bit>

namespace fulmen::detail {
namespace {

constexpr std::array<const char*, kCollectiveKinds> kNames = {"all_reduce",
                                                              "all_gather",
                                                              "reduce_scatter",
                                                              "all_to_all",
                                                              "broadcast",
                                                              "send",
                                                              "receive",
                                                              "barrier"};
constexpr std::array<const char*, 4> kReduceOps = {"sum", "mean", "min", "max"};

/// As PyTorch calls it.
std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kBool:
      return "bool";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    default:
      return at::toString(dtype);
  }
}

}  // namespace

void CollectiveRecord::set_tensor(const at::Tensor& tensor) {
  const auto sizes = tensor.sizes();
  dtype = static_cast<std::int8_t>(tensor.scalar_type());
  dims = static_cast<std::int8_t>(std::min<std::size_t>(sizes.size(), 127));
  std::copy_n(sizes.begin(), std::min(sizes.size(), kMostDims), shape.begin());
}

void CollectiveRecord::set_label(std::string_view text) {
  std::copy_n(text.begin(), std::min(text.size(), kMostLabel), label.begin());
}

std::string CollectiveRecord::name() const {
  std::string text = kNames[static_cast<std::size_t>(kind)];
  if (kind == CollectiveKind::kSend) text += " to rank " + std::to_string(root);
  if (kind == CollectiveKind::kReceive) text += " from rank " + std::to_string(root);
  if (kind == CollectiveKind::kBarrier) text += " \"" + std::string(label.data()) + "\"";
  return text;
}

std::string CollectiveRecord::details() const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : " ") + part; };
  if (kind == CollectiveKind::kBroadcast) add("from rank " + std::to_string(root));
  if (reduce_op >= 0) add(kReduceOps[static_cast<std::size_t>(reduce_op)]);
  if (dtype >= 0) {
    add(dtype_name(static_cast<at::ScalarType>(dtype)));
    const auto shown = std::min(static_cast<std::size_t>(dims), kMostDims);
    std::string sizes;
    for (std::size_t i = 0; i < shown; ++i)
      sizes += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    add("(" + sizes + (static_cast<std::size_t>(dims) > shown ? ", ...)" : ")"));
  }
  if (kind != CollectiveKind::kBarrier && label[0] != 0)
    add("\"" + std::string(label.data()) + "\"");
  return text;
}

std::string CollectiveRecord::describe() const {
  const auto more = details();
  return more.empty() ? name() : name() + " " + more;
}

void GroupLog::start(CollectiveRecord& record) {
  if (!record.is_point_to_point()) {
    record.sequence = get(started_) + 1;
    set(started_, record.sequence);
  }
  const auto words = std::bit_cast<std::array<std::uint64_t, kWords>>(record);
  const auto version = get(version_);
  set(version_, version + 1);
  for (std::size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
  count_event();
}

GroupLog::State GroupLog::read() const {
  State state{.started = get(started_),
              .finished = get(finished_),
              .waiting = get(waiting_),
              .failure = failure(),
              .last = {}};
  std::array<std::uint64_t, kWords> words{};
  std::int64_t version = 0;
  do {
    version = version_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
  } while (version % 2 != 0 || version != get(version_));
  state.last = std::bit_cast<CollectiveRecord>(words);
  return state;
}

}  // namespace fulmen::detail
