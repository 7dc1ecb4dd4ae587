#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace fulmen::detail {

// Adds one to each step tensor. On the CPU straight in memory: a kernel call per scalar would cost
// more than the update of a small parameter.
void count_step(std::vector<at::Tensor>& steps);

}  // namespace fulmen::detail
