#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "fulmen/core/data/batch_request.h"

namespace fulmen::detail {

// Threads that make the batches [first, end) of one epoch, at most `capacity` ahead of the
// consumer, who gets them in order whichever thread was first. One consumer.
class OrderedWorkers {
 public:
  struct Range {
    std::int64_t first = 0;
    std::int64_t end = 0;
  };
  using Make = std::function<AnyBatch(std::int64_t batch_idx, BatchRequest& request)>;
  using MakeRequest = std::function<BatchRequest(const std::atomic<bool>& cancelled)>;

  OrderedWorkers(
      Range range, int workers, std::int64_t capacity, Make make, MakeRequest make_request);
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;
  // Waits for the samples that are being read now, not for whole batches.
  ~OrderedWorkers();

  // False at the end. Rethrows what making this batch threw; the next call goes on with the next
  // batch.
  bool next(AnyBatch& batch);

 private:
  struct Slot {
    bool ready = false;
    AnyBatch batch;
    std::exception_ptr error;
  };

  void launch(int workers);
  void stop() noexcept;
  void work();
  void make_into(Slot& result, std::int64_t batch_idx, BatchRequest& request) const;
  Slot& slot_of(std::int64_t batch_idx) {
    return slots_[static_cast<std::size_t>(batch_idx) % slots_.size()];
  }

  Make make_;
  MakeRequest make_request_;
  std::atomic<bool> cancelled_{false};
  std::mutex mutex_;  // Guards what follows.
  std::condition_variable ready_;
  std::condition_variable space_;
  std::int64_t end_;
  std::int64_t claimed_;   // The next batch that a worker takes.
  std::int64_t consumed_;  // The next batch that the consumer gets.
  std::vector<Slot> slots_;
  std::vector<std::thread> threads_;
};

}  // namespace fulmen::detail
