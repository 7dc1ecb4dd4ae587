#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "fulmen/core/data/batch_source.h"
#include "fulmen/core/data/data_loader.h"

namespace fulmen {

/// Sample i is the number i.
struct IndexDataset {
  std::int64_t count = 0;

  std::int64_t size() const { return count; }
  std::int64_t get(std::int64_t index) const { return index; }
};

using Epoch = std::vector<std::vector<std::int64_t>>;

inline std::vector<std::int64_t> to_vector(const torch::Tensor& tensor) {
  const auto flat = tensor.to(torch::kLong).contiguous().view({-1});
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

/// The batches (tensors of numbers) of one epoch, at most `limit`; the epoch is then left.
inline Epoch read_epoch(BatchSource& source, const EpochStart& start, std::int64_t limit = 1000) {
  Epoch epoch;
  source.start_epoch(start);
  AnyBatch batch;
  while (std::ssize(epoch) < limit && source.next(batch))
    epoch.push_back(to_vector(batch.get<torch::Tensor>()));
  source.stop_epoch();
  return epoch;
}

inline std::vector<std::int64_t> flatten(const Epoch& epoch) {
  std::vector<std::int64_t> all;
  for (const auto& batch : epoch) all.insert(all.end(), batch.begin(), batch.end());
  return all;
}

inline Epoch read(const DataLoader<torch::Tensor>& loader, const EpochStart& start = {}) {
  return read_epoch(*loader.source(), start);
}

inline std::vector<std::int64_t> sorted(std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  return values;
}

inline std::vector<std::int64_t> iota(std::int64_t size) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(size));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

/// The message of the E that `function` throws; a failure if it throws none.
template <class E, class F>
std::string message_of(F&& function) {
  try {
    std::forward<F>(function)();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline void expect_says(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
}

}  // namespace fulmen
