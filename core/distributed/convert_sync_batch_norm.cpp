#include <torch/torch.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "fulmen/core/distributed/sync_batch_norm.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using Made = std::shared_ptr<SyncBatchNormImpl>;

/// A BatchNorm and the places of the tree that hold it.
struct Found {
  std::weak_ptr<torch::nn::Module> old;
  std::string path;
  std::vector<std::function<void(const Made&)>> places;
};

template <class Norm>
bool is_a(const torch::nn::Module& module) {
  return typeid(module) == typeid(Norm);
}

bool is_batch_norm(const torch::nn::Module& module) {
  return is_a<torch::nn::BatchNorm1dImpl>(module) || is_a<torch::nn::BatchNorm2dImpl>(module) ||
         is_a<torch::nn::BatchNorm3dImpl>(module);
}

Made make(const torch::nn::Module& norm, const ProcessGroup& group) {
  const auto from = [&](const auto* typed) {
    return typed != nullptr ? std::make_shared<SyncBatchNormImpl>(*typed, group) : nullptr;
  };
  if (auto made = from(norm.as<torch::nn::BatchNorm1dImpl>())) return made;
  if (auto made = from(norm.as<torch::nn::BatchNorm2dImpl>())) return made;
  return from(norm.as<torch::nn::BatchNorm3dImpl>());
}

/// Calls `visit(held, place)` where a container keeps a child beside its list of children.
template <class Visit>
void for_each_slot(torch::nn::Module& container, const Visit& visit) {
  if (auto* sequential = container.as<torch::nn::SequentialImpl>()) {
    for (auto& slot : *sequential) {
      visit(slot.ptr().get(), [&slot](const Made& made) { slot = torch::nn::AnyModule(made); });
    }
  } else if (auto* list = container.as<torch::nn::ModuleListImpl>()) {
    for (auto& slot : *list) visit(slot.get(), [&slot](const Made& made) { slot = made; });
  } else if (auto* dict = container.as<torch::nn::ModuleDictImpl>()) {
    for (auto& item : *dict) {
      visit(item.value().get(), [&item](const Made& made) { item.value() = made; });
    }
  }
}

class Conversion {
 public:
  void collect(torch::nn::Module& parent, const std::string& path) {
    if (!visited_.insert(&parent).second) return;
    for (const auto& child : parent.named_children()) {
      const auto path_of_child = path + child.key();
      if (auto* norm = child.value()->as<SyncBatchNormImpl>()) {
        if (!norm->group()) without_group_.insert(norm);
        continue;
      }
      if (!is_batch_norm(*child.value())) {
        collect(*child.value(), path_of_child + ".");
        continue;
      }
      auto* found = find(child.value().get());
      if (found == nullptr) found = &found_.emplace_back(Found{child.value(), path_of_child, {}});
      found->places.push_back([&parent, name = child.key()](const Made& made) {
        parent.replace_module(name, std::static_pointer_cast<torch::nn::Module>(made));
      });
    }
    for_each_slot(parent, [&](const torch::nn::Module* held, auto place) {
      if (auto* found = find(held)) found->places.push_back(place);
    });
  }

  /// Those that would go on being used by somebody else.
  std::string held_elsewhere() const {
    std::string paths;
    for (const auto& found : found_) {
      if (found.old.use_count() <= std::ssize(found.places)) continue;
      paths += (paths.empty() ? "" : ", ") + found.path;
    }
    return paths;
  }

  std::int64_t replace(const ProcessGroup& group) const {
    for (const auto& found : found_) {
      const auto made = make(*found.old.lock(), group);
      for (const auto& place : found.places) place(made);
    }
    for (auto* norm : without_group_) norm->set_group(group);
    return std::ssize(found_) + std::ssize(without_group_);
  }

 private:
  Found* find(const torch::nn::Module* module) {
    for (auto& found : found_) {
      if (found.old.lock().get() == module) return &found;
    }
    return nullptr;
  }

  std::vector<Found> found_;
  std::set<SyncBatchNormImpl*> without_group_;
  std::set<const torch::nn::Module*> visited_;
};

}  // namespace

std::int64_t convert_sync_batch_norm(torch::nn::Module& module, const ProcessGroup& group) {
  constexpr auto kConvert = "convert_sync_batch_norm";
  if (is_batch_norm(module)) {
    fail<ConfigError>(kConvert,
                      "the module itself is a BatchNorm, and only children can be replaced. Use ",
                      "SyncBatchNorm(*norm, group).");
  }
  Conversion conversion;
  conversion.collect(module, "");
  if (const auto paths = conversion.held_elsewhere(); !paths.empty()) {
    fail<ConfigError>(
        kConvert,
        "something besides the list of children holds ",
        paths,
        " (a member typed torch::nn::BatchNorm or AnyModule, or a variable), and ",
        "would go on using it. Make such a member a fulmen::SyncBatchNorm; nothing was ",
        "changed.");
  }
  return conversion.replace(group);
}

}  // namespace fulmen
