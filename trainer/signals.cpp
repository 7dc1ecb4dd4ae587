#include "signals.h"

#include <array>
#include <atomic>
#include <csignal>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

// A signal handler can reach nothing but globals. At most one guard lives in a process at a time.
std::atomic<int> received_signal = 0;
std::atomic<bool> guard_exists = false;
struct Caught {
  int number = 0;
  struct sigaction previous = {};
};
std::array<Caught, SignalGuard::kMost> caught;
std::size_t caught_count = 0;

/// sigaction may be called in a handler.
void put_back() {
  for (std::size_t i = 0; i < caught_count; ++i)
    sigaction(caught[i].number, &caught[i].previous, nullptr);
}

extern "C" void fulmen_on_signal(int number) {
  received_signal.store(number, std::memory_order_relaxed);
  // A second one must get through although the first is still being dealt with.
  put_back();
}

}  // namespace

SignalGuard::SignalGuard(std::vector<int> signals) {
  if (guard_exists.exchange(true)) return;  // A trainer inside a trainer: the outer one has them.
  installed_ = true;
  received_signal = 0;
  caught_count = 0;
  struct sigaction action = {};
  action.sa_handler = fulmen_on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int number : signals) {
    // Complete before the handler can run.
    if (sigaction(number, nullptr, &caught.at(caught_count).previous) == 0) {
      caught[caught_count++].number = number;
      if (sigaction(number, &action, nullptr) == 0) continue;
    }
    restore();
    fail<ConfigError>("Trainer",
                      "signal handlers cannot be installed. Use .signals = SignalHandling::kNone.");
  }
}

SignalGuard::~SignalGuard() {
  if (installed_) restore();
}

int SignalGuard::received() noexcept {
  return received_signal.load(std::memory_order_relaxed);
}

void SignalGuard::deliver(int of_another_rank) {
  if (!installed_) return;
  const int number = received() != 0 ? received() : of_another_rank;
  restore();
  if (number != 0) std::raise(number);
}

void SignalGuard::restore() noexcept {
  put_back();
  received_signal = 0;
  installed_ = false;
  guard_exists = false;
}

}  // namespace fulmen::detail
