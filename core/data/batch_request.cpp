#include "fulmen/core/data/batch_request.h"

#include <ATen/CPUGeneratorImpl.h>

#include "core/data/random_key.h"

namespace fulmen::detail {

at::Generator& BatchRequest::seeded(std::uint64_t key) {
  if (!generator_.defined()) {
    generator_ = at::detail::createCPUGenerator(key);
  } else {
    generator_.set_current_seed(key);
  }
  return generator_;
}

at::Generator& BatchRequest::sample_generator(std::int64_t index) {
  return seeded(random_key(RandomPurpose::kSample, seed_, epoch_, index));
}

at::Generator& BatchRequest::batch_generator() {
  return seeded(random_key(RandomPurpose::kBatch, seed_, epoch_, batch_idx_));
}

}  // namespace fulmen::detail
