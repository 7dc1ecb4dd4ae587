#pragma once

#include <torch/nn/modules/linear.h>

#include "fulmen/core/module/lightning_module.h"

namespace fulmen {

/// Linear(2, 3) as "layer", no steps.
class FakeModule : public LightningModule<> {
 public:
  FakeModule()
      : LightningModule("FakeModule"), layer(register_module("layer", torch::nn::Linear(2, 3))) {}
  OptimizationMode optimization_mode() const override { return mode; }

  torch::nn::Linear layer;
  OptimizationMode mode = OptimizationMode::kAutomatic;
};

}  // namespace fulmen
