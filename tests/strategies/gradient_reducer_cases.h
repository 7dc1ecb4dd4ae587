#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/strategies/gradient_reducer.h"
#include "strategies/gradient_bucket.h"

namespace fulmen {

/// w (one number) that is used as w * x: its gradient is x.
struct OneWeight : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({1}, torch::kDouble));
};

struct TwoWeights : torch::nn::Module {
  at::Tensor a = register_parameter("a", torch::zeros({2}, torch::kDouble));
  at::Tensor b = register_parameter("b", torch::zeros({3}, torch::kDouble));
};

/// Each parameter in a bucket of its own.
inline GradientReducerOptions one_each(std::shared_ptr<CommHook> hook = {}) {
  return {.bucket_cap_bytes = 1, .first_bucket_cap_bytes = 1, .comm_hook = std::move(hook)};
}

inline std::vector<MeshAxis> data_axis() {
  return {{.name = "data"}};
}
inline std::vector<MeshAxis> mesh_axes(int data, int model) {
  return {{.name = "data", .size = data}, {.name = "model", .size = model}};
}

inline WindowVote vote(double weight) {
  return {.weight = {.number = weight}, .has_loss = weight > 0};
}

/// One micro-batch: backward of `loss`, weighted.
inline void run_backward(GradientReducer& reducer,
                         const at::Tensor& loss,
                         GradSync sync = GradSync::kNow,
                         double weight = 1) {
  reducer.start_backward(sync);
  loss.backward(torch::full_like(loss, weight * reducer.loss_scale()).detach());
  reducer.end_backward();
}

/// Elements of a slot.
inline std::int64_t slot_size(std::size_t parameters) {
  return detail::WindowSlot::size_for(parameters);
}

inline at::Tensor filled(std::int64_t size, double value) {
  return torch::full({size}, value, torch::kDouble);
}

/// Sums as the default does, and notes what is called.
class Recorder final : public CommHook {
 public:
  void start(at::Tensor& bucket, int index, const ProcessGroup& group) override {
    events.push_back("start " + std::to_string(index));
    sizes.push_back(bucket.numel());
    work_[index] = all_reduce_async(bucket, ReduceOp::kSum, group);
  }
  void finish(int index) override {
    events.push_back("finish " + std::to_string(index));
    work_[index].wait();
  }
  std::vector<std::string> events;
  std::vector<std::int64_t> sizes;

 private:
  std::map<int, Work> work_;
};

}  // namespace fulmen
