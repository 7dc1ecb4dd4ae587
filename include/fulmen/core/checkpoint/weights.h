#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fulmen/core/support/state_dict.h"
#include "fulmen/fwd.h"

namespace fulmen {

/// kNo loads what both sides have and reports the rest; shapes and dtypes must still be equal.
enum class Strict { kYes, kNo };

struct LoadWeightsOptions {
  Strict strict = Strict::kYes;
};

/// Names that only one side has. Both are empty after a strict load.
struct LoadReport {
  std::vector<std::string> missing = {};
  std::vector<std::string> unexpected = {};
};

/// Tensors with their names; a tensor that is tied appears once for each name.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// A module's tensors with tied ones stored once, under the first of their names.
struct ModuleState {
  TensorMap tensors = {};
  /// Another name of a stored tensor -> the name it is stored under.
  std::map<std::string, std::string> aliases = {};
};

/// Parameters, then buffers, under the names that Python gives them ("layer.weight").
NamedTensors named_tensors(const torch::nn::Module& module);

/// The module's parameters and buffers. The tensors share memory with the module: clone them to
/// keep values.
ModuleState module_state(const torch::nn::Module& module);

/// Checks that load_into would succeed, and changes nothing. Throws CheckpointError with one line
/// for each problem: names that are missing or unexpected (strict), another shape or dtype, and
/// targets that are one tensor but have different stored values. `where` opens the message.
LoadReport check_load(const TensorMap& stored,
                      const std::map<std::string, std::string>& aliases,
                      const NamedTensors& targets,
                      std::string_view where,
                      Strict strict = Strict::kYes);

/// Copies stored values into the targets' memory, whatever their device. Throws as check_load
/// before anything is changed.
LoadReport load_into(const TensorMap& stored,
                     const std::map<std::string, std::string>& aliases,
                     const NamedTensors& targets,
                     std::string_view where,
                     Strict strict = Strict::kYes);

/// Loads weights alone: from a checkpoint directory, a pointer file such as `best`, or a
/// `.safetensors` file, also one that Python wrote. Throws CheckpointError before anything is
/// changed.
LoadReport load_weights(torch::nn::Module& module,
                        const std::filesystem::path& path,
                        LoadWeightsOptions options = {});

}  // namespace fulmen
