#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fulmen/core/module/callback.h"

namespace fulmen {

struct ModelSummaryOptions {
  std::int64_t max_depth = 1;  ///< Levels of submodules in the table; -1: all, 0: totals only.
};

/// A table of submodules (name, type, parameters, mode) and the totals. A tensor that is registered
/// under several names counts once, in the totals and within each row.
std::string format_model_summary(const torch::nn::Module& module,
                                 const ModelSummaryOptions& options = {});

/// Says the summary when a fit starts.
class ModelSummary : public Callback {
 public:
  /// Throws ConfigError if max_depth is below -1.
  static std::shared_ptr<ModelSummary> make(ModelSummaryOptions options = {});

  void on_fit_start(Context& context, Module& module) override;

 private:
  explicit ModelSummary(ModelSummaryOptions options) : options_(options) {}

  ModelSummaryOptions options_;
};

}  // namespace fulmen
