#include "fulmen/core/checkpoint/weights.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>

#include <cstring>
#include <set>
#include <sstream>

#include "fulmen/core/checkpoint/checkpoint.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

/// Equal for two tensors that share all their values.
const void* identity(const at::Tensor& tensor) {
  const bool has_data = tensor.numel() > 0 && tensor.has_storage() && !tensor.is_meta();
  return has_data ? tensor.const_data_ptr() : tensor.unsafeGetTensorImpl();
}

/// Also for NaN, and 0 differs from -0.
bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_same(b)) return true;
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor left = a.cpu().contiguous();
  const at::Tensor right = b.cpu().contiguous();
  return left.numel() == 0 ||
         std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

/// Compares stored tensors with targets and collects every problem.
class Comparison {
 public:
  Comparison(const TensorMap& stored, const std::map<std::string, std::string>& aliases)
      : stored_(stored), aliases_(aliases) {}

  /// The stored tensor of that name, or null.
  const at::Tensor* find(const std::string& name) const {
    if (const auto own = stored_.find(name); own != stored_.end()) return &own->second;
    const auto alias = aliases_.find(name);
    if (alias == aliases_.end()) return nullptr;
    const auto other = stored_.find(alias->second);
    return other == stored_.end() ? nullptr : &other->second;
  }

  void compare(const NamedTensors& targets) {
    compare_aliases();
    std::map<const void*, std::pair<std::string, const at::Tensor*>> first_of;
    for (const auto& [name, target] : targets) {
      seen_.insert(name);
      const at::Tensor* source = find(name);
      if (source == nullptr) {
        report_.missing.push_back(name);
        continue;
      }
      compare_kind(name, *source, target);
      const auto [first, fresh] = first_of.try_emplace(identity(target), name, source);
      const auto& [first_name, first_source] = first->second;
      if (!fresh && first_source->sizes() == source->sizes() &&
          !same_bytes(*first_source, *source)) {
        add("tied: '",
            first_name,
            "' and '",
            name,
            "' are one tensor here, but their stored values differ");
      }
    }
    find_unexpected();
  }

  const LoadReport& report() const { return report_; }

  void fail_on_problems(std::string_view where, Strict strict) const {
    std::ostringstream names;
    std::size_t count = count_;
    if (strict == Strict::kYes) {
      for (const auto& name : report_.missing) names << "\n  missing: '" << name << "'";
      for (const auto& name : report_.unexpected) names << "\n  unexpected: '" << name << "'";
      count += report_.missing.size() + report_.unexpected.size();
    }
    if (count == 0) return;
    fail<CheckpointError>(where,
                          "the stored tensors do not fit, ",
                          count,
                          count == 1 ? " problem" : " problems",
                          " (nothing was changed):",
                          names.str(),
                          problems_.str());
  }

 private:
  template <class... Parts>
  void add(const Parts&... parts) {
    ++count_;
    problems_ << "\n  ";
    (problems_ << ... << parts);
  }

  void compare_aliases() {
    for (const auto& [alias, name] : aliases_) {
      const auto source = stored_.find(name);
      const auto own = stored_.find(alias);
      if (source == stored_.end()) {
        add("tied: '", alias, "' has the values of '", name, "', which is not stored");
      } else if (own != stored_.end() && !same_bytes(own->second, source->second)) {
        add("tied: '", alias, "' and '", name, "' should be one tensor, but their values differ");
      }
    }
  }

  void compare_kind(const std::string& name, const at::Tensor& source, const at::Tensor& target) {
    if (source.sizes() != target.sizes()) {
      add("shape: '", name, "' is ", source.sizes(), " in the file and ", target.sizes(), " here");
    }
    if (source.scalar_type() != target.scalar_type()) {
      add("dtype: '",
          name,
          "' is ",
          c10::toString(source.scalar_type()),
          " in the file and ",
          c10::toString(target.scalar_type()),
          " here");
    }
    if (at::has_internal_overlap(target) == at::MemOverlap::Yes)
      add("memory: elements of '",
          name,
          "' share memory, so they cannot be loaded; register a clone()");
    if (target.is_meta())
      add("meta: '", name, "' has no memory here; materialize the module first");
  }

  void find_unexpected() {
    for (const auto& [name, tensor] : stored_) {
      if (!seen_.contains(name)) report_.unexpected.push_back(name);
    }
    for (const auto& [name, stored] : aliases_) {
      if (!seen_.contains(name) && !stored_.contains(name)) report_.unexpected.push_back(name);
    }
  }

  const TensorMap& stored_;
  const std::map<std::string, std::string>& aliases_;
  std::set<std::string> seen_;
  LoadReport report_;
  std::ostringstream problems_;
  std::size_t count_ = 0;
};

}  // namespace

NamedTensors named_tensors(const torch::nn::Module& module) {
  NamedTensors tensors;
  for (const auto& entry : module.named_parameters())
    tensors.emplace_back(entry.key(), entry.value());
  for (const auto& entry : module.named_buffers()) {
    if (entry.value().defined()) tensors.emplace_back(entry.key(), entry.value());
  }
  return tensors;
}

ModuleState module_state(const torch::nn::Module& module) {
  TensorMap all;
  for (auto& [name, tensor] : named_tensors(module)) all.emplace(name, tensor);
  ModuleState state;
  std::map<const at::TensorImpl*, std::string> stored_as;
  for (const auto& [name, tensor] : all) {
    const auto [first, fresh] = stored_as.try_emplace(tensor.unsafeGetTensorImpl(), name);
    if (fresh) {
      state.tensors.emplace(name, tensor.detach());
    } else {
      state.aliases.emplace(name, first->second);
    }
  }
  return state;
}

LoadReport check_load(const TensorMap& stored,
                      const std::map<std::string, std::string>& aliases,
                      const NamedTensors& targets,
                      std::string_view where,
                      Strict strict) {
  Comparison comparison(stored, aliases);
  comparison.compare(targets);
  comparison.fail_on_problems(where, strict);
  return comparison.report();
}

LoadReport load_into(const TensorMap& stored,
                     const std::map<std::string, std::string>& aliases,
                     const NamedTensors& targets,
                     std::string_view where,
                     Strict strict) {
  LoadReport report = check_load(stored, aliases, targets, where, strict);
  const Comparison comparison(stored, aliases);
  const torch::NoGradGuard no_grad;
  std::set<const at::TensorImpl*> done;
  for (const auto& [name, target] : targets) {
    const at::Tensor* source = comparison.find(name);
    if (source != nullptr && done.insert(target.unsafeGetTensorImpl()).second) {
      target.copy_(*source);
    }
  }
  return report;
}

LoadReport load_weights(torch::nn::Module& module,
                        const std::filesystem::path& path,
                        LoadWeightsOptions options) {
  const CheckpointContents contents = read_checkpoint(path, CheckpointParts::kModelOnly);
  return load_into(contents.model,
                   contents.aliases,
                   named_tensors(module),
                   "load_weights('" + path.string() + "')",
                   options.strict);
}

}  // namespace fulmen
