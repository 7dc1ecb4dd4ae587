#include "fulmen/core/distributed/shared_weights.h"

#include <torch/torch.h>

#include <algorithm>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <vector>

#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

/// "a tensor of shape [2, 3]", or the name where it is known.
std::string describe(const at::Tensor& tensor, std::string_view name) {
  if (!name.empty()) return std::string(name);
  if (!tensor.defined()) return "an undefined tensor";
  std::ostringstream text;
  text << "a tensor of shape " << tensor.sizes();
  return text.str();
}

// A C++ tensor has no room for marks, so they stand beside it, for all threads of the process. The
// key is the TensorImpl, which to(dtype) and set_data() keep. A weak pointer goes with it: it tells
// whether that tensor still lives, and while it is held no other one can get its address.
class MarkTable {
 public:
  static MarkTable& instance() {
    static MarkTable table;
    return table;
  }

  void mark(const at::Tensor& tensor,
            std::string_view axis,
            const Placement& placement,
            std::string_view name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& entry = entry_of(tensor);
    const auto [it, is_new] = entry.marks.try_emplace(std::string(axis), placement);
    if (is_new || it->second == placement) return;
    fail<ConfigError>("mark_placement",
                      describe(tensor, name),
                      " is marked as ",
                      to_string(it->second),
                      " on the axis \"",
                      axis,
                      "\" already and cannot be ",
                      to_string(placement),
                      " too. unmark() it first.");
  }

  void unmark(const at::Tensor& tensor, std::string_view axis) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (auto* entry = find(tensor)) {
      if (const auto it = entry->marks.find(axis); it != entry->marks.end()) {
        entry->marks.erase(it);
        return;
      }
    }
    fail<ConfigError>("unmark", describe(tensor, {}), " has no mark for the axis \"", axis, "\".");
  }

  PlacementMarks marks(const at::Tensor& tensor) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* entry = find(tensor);
    return entry == nullptr ? PlacementMarks() : entry->marks;
  }

 private:
  using Weak = c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>;
  struct Entry {
    Weak tensor;
    PlacementMarks marks;
  };

  Entry* find(const at::Tensor& tensor) {
    const auto it = entries_.find(tensor.unsafeGetTensorImpl());
    return it == entries_.end() || it->second.tensor.expired() ? nullptr : &it->second;
  }

  Entry& entry_of(const at::Tensor& tensor) {
    if (auto* entry = find(tensor)) return *entry;
    if (entries_.size() >= limit_) {
      std::erase_if(entries_, [](const auto& item) { return item.second.tensor.expired(); });
      limit_ = std::max<std::size_t>(64, 2 * entries_.size());
    }
    auto* key = tensor.unsafeGetTensorImpl();
    return entries_.insert_or_assign(key, Entry{Weak(tensor.getIntrusivePtr()), {}}).first->second;
  }

  std::mutex mutex_;
  std::unordered_map<const at::TensorImpl*, Entry> entries_;
  std::size_t limit_ = 64;
};

/// torch::nn::Module keeps its parameters in a member that only derived classes may touch.
struct ParametersOf : torch::nn::Module {
  static auto member() { return &ParametersOf::parameters_; }
};

void check_tie(const at::Tensor& source, const at::Tensor& target, const std::string& name) {
  if (!source.defined())
    fail<ConfigError>("tie_weights", "the tensor for ", name, " is undefined.");
  if (source.sizes() != target.sizes() || source.scalar_type() != target.scalar_type() ||
      source.device() != target.device()) {
    const auto describe_type = [](const at::Tensor& tensor) {
      std::ostringstream text;
      text << tensor.sizes() << " " << c10::getDtypeNames(tensor.scalar_type()).first << " on "
           << tensor.device();
      return text.str();
    };
    fail<ConfigError>("tie_weights",
                      name,
                      " is ",
                      describe_type(target),
                      " and cannot be one tensor with ",
                      describe_type(source),
                      ". Shape, dtype and device must be equal.");
  }
  const auto marks = placement_marks(source);
  for (const auto& [axis, placement] : placement_marks(target)) {
    const auto it = marks.find(axis);
    if (it == marks.end() || it->second == placement) continue;
    fail<ConfigError>("tie_weights",
                      name,
                      " is marked as ",
                      to_string(placement),
                      " on the axis \"",
                      axis,
                      "\", and what it is to be tied to as ",
                      to_string(it->second),
                      ". One parameter can be only one of them: unmark() one.");
  }
}

}  // namespace

void mark_placement(const at::Tensor& parameter, std::string_view axis, Placement placement) {
  if (!parameter.defined()) {
    fail<ConfigError>("mark_placement",
                      "got an undefined tensor for the axis \"",
                      axis,
                      "\". Mark parameters when they exist.");
  }
  MarkTable::instance().mark(parameter, axis, placement, {});
}

void mark_as_shared(const at::Tensor& parameter, std::string_view axis) {
  mark_placement(parameter, axis, shared());
}

void mark_as_shared(const torch::nn::Module& module, std::string_view axis) {
  for (const auto& item : module.named_parameters()) {
    MarkTable::instance().mark(item.value(), axis, shared(), item.key());
  }
}

void unmark(const at::Tensor& parameter, std::string_view axis) {
  MarkTable::instance().unmark(parameter, axis);
}

PlacementMarks placement_marks(const at::Tensor& parameter) {
  return parameter.defined() ? MarkTable::instance().marks(parameter) : PlacementMarks();
}

void tie_weights(const at::Tensor& source, at::Tensor& target, torch::nn::Module& owner) {
  // Copies: the arguments may be the very entries that are replaced.
  const auto kept = source;
  const auto old = target;
  std::vector<at::Tensor*> entries;
  std::string name;
  for (auto& item : owner.*ParametersOf::member()) {
    if (!old.defined() || !item.value().is_same(old)) continue;
    entries.push_back(&item.value());
    if (name.empty()) name = item.key() + " of " + owner.name();
  }
  if (entries.empty()) {
    fail<ConfigError>("tie_weights",
                      "the tensor to be replaced is no parameter of ",
                      owner.name(),
                      " itself. Give the module that registered it.");
  }
  check_tie(kept, old, name);
  for (const auto& [axis, placement] : placement_marks(old)) mark_placement(kept, axis, placement);
  for (auto* entry : entries) *entry = kept;
  target = kept;
}

}  // namespace fulmen
