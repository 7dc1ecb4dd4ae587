#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace fulmen {

/// What a step returns. `return loss;`, `return {loss, weight};` and `return {};` all work.
struct StepOutput {
  /// Nothing: training skips the backward of this micro-batch.
  StepOutput() = default;
  /// A scalar loss with a graph: the mean over this micro-batch.
  StepOutput(at::Tensor loss_value)
      : loss(std::move(loss_value)) {}  // NOLINT(google-explicit-constructor)
  /// A weight greater than 0, for example the number of tokens: gradient of a step =
  /// sum of weight x gradient / sum of weight over the micro-batches of its window.
  StepOutput(at::Tensor loss_value, double loss_weight)
      : loss(std::move(loss_value)), weight(loss_weight) {}
  /// The weight as a tensor of one element that may stay on the device.
  StepOutput(at::Tensor loss_value, at::Tensor loss_weight)
      : loss(std::move(loss_value)), weight_tensor(std::move(loss_weight)) {}

  at::Tensor loss;
  std::optional<double> weight;
  at::Tensor weight_tensor;
  /// Whatever callbacks should see in on_*_batch_end.
  std::map<std::string, at::Tensor> values;
};

}  // namespace fulmen
