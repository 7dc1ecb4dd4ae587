#include "step_count.h"

#include <ATen/ATen.h>

namespace fulmen::detail {

void count_step(std::vector<at::Tensor>& steps) {
  if (!steps.empty() && !steps.front().is_cpu()) {
    at::_foreach_add_(steps, 1);
    return;
  }
  for (auto& step : steps) *step.mutable_data_ptr<float>() += 1;
}

}  // namespace fulmen::detail
