#include "signals.h"

#include <atomic>
#include <csignal>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

// A signal handler can reach nothing but globals. At most one guard lives in a process at a time.
std::atomic<int> received_signal = 0;
std::atomic<bool> guard_exists = false;
struct sigaction previous_int, previous_term;

extern "C" void fulmen_on_signal(int number) {
  received_signal.store(number, std::memory_order_relaxed);
  // A second one must get through although the first is still being dealt with.
  sigaction(SIGINT, &previous_int, nullptr);
  sigaction(SIGTERM, &previous_term, nullptr);
}

}  // namespace

SignalGuard::SignalGuard() {
  if (guard_exists.exchange(true)) return;  // A trainer inside a trainer: the outer one has them.
  installed_ = true;
  received_signal = 0;
  struct sigaction action = {};
  action.sa_handler = fulmen_on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGINT, &action, &previous_int) != 0 ||
      sigaction(SIGTERM, &action, &previous_term) != 0) {
    guard_exists = false;
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

void SignalGuard::deliver() {
  if (!installed_) return;
  const int number = received();
  restore();
  if (number != 0) std::raise(number);
}

void SignalGuard::restore() noexcept {
  sigaction(SIGINT, &previous_int, nullptr);
  sigaction(SIGTERM, &previous_term, nullptr);
  received_signal = 0;
  installed_ = false;
  guard_exists = false;
}

}  // namespace fulmen::detail
