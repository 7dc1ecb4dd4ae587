#include "core/data/ordered_workers.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

// Workers are parallel already: operators in them use one thread. at::set_num_threads would also
// change what other threads get; OpenMP's own setting belongs to the calling thread. It is looked
// up at run time because a second OpenMP runtime must not be linked beside LibTorch's.
void use_one_thread_per_operator() {
  using SetNumThreads = void (*)(int);
  at::get_num_threads();  // LibTorch's own set-up of this thread must come first.
  if (void* function = ::dlsym(RTLD_DEFAULT, "omp_set_num_threads"))
    reinterpret_cast<SetNumThreads>(function)(1);
}

}  // namespace

OrderedWorkers::OrderedWorkers(
    Range range, int workers, std::int64_t capacity, Make make, MakeRequest make_request)
    : make_(std::move(make)),
      make_request_(std::move(make_request)),
      end_(range.end),
      claimed_(range.first),
      consumed_(range.first),
      slots_(static_cast<std::size_t>(capacity)) {
  launch(static_cast<int>(std::min<std::int64_t>(workers, range.end - range.first)));
}

OrderedWorkers::~OrderedWorkers() {
  stop();
}

void OrderedWorkers::launch(int workers) {
  threads_.reserve(static_cast<std::size_t>(workers));
  try {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    const auto started = threads_.size();
    stop();
    fail<DataError>("DataLoader",
                    "worker thread ",
                    started + 1,
                    " of ",
                    workers,
                    " cannot be started: ",
                    error.what(),
                    ". Lower num_workers.");
  }
}

void OrderedWorkers::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    cancelled_.store(true, std::memory_order_relaxed);
  }
  space_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

void OrderedWorkers::work() {
  use_one_thread_per_operator();
  auto request = make_request_(cancelled_);
  std::unique_lock lock(mutex_);
  for (;;) {
    space_.wait(lock, [&] {
      return request.cancelled() || claimed_ == end_ ||
             claimed_ < consumed_ + static_cast<std::int64_t>(slots_.size());
    });
    if (request.cancelled() || claimed_ == end_) return;
    const auto batch_idx = claimed_++;
    lock.unlock();
    Slot result;
    make_into(result, batch_idx, request);
    lock.lock();
    slot_of(batch_idx) = std::move(result);
    if (batch_idx == consumed_) ready_.notify_one();
  }
}

void OrderedWorkers::make_into(Slot& result, std::int64_t batch_idx, BatchRequest& request) const {
  try {
    result.batch = make_(batch_idx, request);
  } catch (...) {
    result.error = std::current_exception();
  }
  result.ready = true;
}

bool OrderedWorkers::next(AnyBatch& batch) {
  Slot slot;
  {
    std::unique_lock lock(mutex_);
    if (consumed_ == end_) return false;
    ready_.wait(lock, [&] { return slot_of(consumed_).ready; });
    slot = std::exchange(slot_of(consumed_), Slot());
    ++consumed_;
  }
  space_.notify_one();
  if (slot.error != nullptr) std::rethrow_exception(std::move(slot.error));
  batch = std::move(slot.batch);
  return true;
}

}  // namespace fulmen::detail
