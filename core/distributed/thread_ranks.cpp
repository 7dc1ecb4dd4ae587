#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "fulmen/core/distributed/world.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

// How the ranks ended. The cause of a failure is the first exception that is not the echo of
// another rank's end.
class Ends {
 public:
  explicit Ends(int ranks) : running_(ranks) {}

  void fail(std::exception_ptr error, bool may_be_echo) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& place = may_be_echo ? echo_ : cause_;
    if (!place) place = std::move(error);
    --running_;
    changed_.notify_all();
  }
  // Sockets that close while a peer still connects, or reads its last message, would look like the
  // end of a failed rank.
  void succeed_and_wait_for_others() {
    std::unique_lock<std::mutex> lock(mutex_);
    --running_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return running_ == 0 || cause_ || echo_; });
  }
  void rethrow() const {
    if (cause_) std::rethrow_exception(cause_);
    if (echo_) std::rethrow_exception(echo_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int running_;
  std::exception_ptr cause_;
  std::exception_ptr echo_;
};

}  // namespace

void run_thread_ranks(int size,
                      const std::function<void(const std::shared_ptr<World>&)>& body,
                      const WorldOptions& options) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  Ends ends(size);
  const auto run = [&](int rank) {
    std::shared_ptr<World> world;  // Outlives the entry in `ends`: its end makes the peers fail.
    try {
      const Topology topology{
          .rank = rank, .local_rank = rank, .world_size = size, .local_world_size = size};
      world = World::join(topology, store, options);
      body(world);
      ends.succeed_and_wait_for_others();
    } catch (const DistributedError&) {
      ends.fail(std::current_exception(), true);
    } catch (...) {
      ends.fail(std::current_exception(), false);
    }
  };
  std::vector<std::thread> ranks;
  for (int rank = 1; rank < size; ++rank) ranks.emplace_back(run, rank);
  run(0);
  for (auto& rank : ranks) rank.join();
  ends.rethrow();
}

}  // namespace fulmen
