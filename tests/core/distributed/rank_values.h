#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <vector>

#include "fulmen/core/distributed/world.h"

namespace fulmen::testing {

/// On worlds of `from` to 4 ranks, each a thread.
inline void on_ranks(const std::function<void(const ProcessGroup&)>& body, int from = 1) {
  for (int size = from; size <= 4; ++size) {
    run_thread_ranks(size, [&](const std::shared_ptr<World>& world) { body(world->all()); });
  }
}

/// Multiples of 1/4, so that sums are exact in any order; other ones on each rank.
inline at::Tensor values(int rank, at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  const auto numel = c10::multiply_integers(shape);
  return (at::arange(numel, at::kDouble) * (rank % 2 == 0 ? rank + 1 : -rank) + 0.25 * rank)
      .reshape(shape)
      .to(dtype);
}

/// Those of all ranks: (size, shape...).
inline at::Tensor stacked(int size, at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(values(rank, shape, dtype));
  return at::stack(all);
}

inline void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(at::equal(actual, expected)) << actual << "\nis not\n" << expected;
}

}  // namespace fulmen::testing
