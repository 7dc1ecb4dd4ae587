#include "core/distributed/signal_relay.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <ctime>
#include <memory>

namespace fulmen::detail {
namespace {

/// What the handler reads.
struct Targets {
  std::atomic<pid_t> owner = 0;  // Its process; 0: there is nobody to hand signals on to.
  std::size_t size = 0;
  std::unique_ptr<std::atomic<pid_t>[]> processes;  // 0: has ended.
};

// A signal handler can reach nothing but globals.
std::atomic<Targets*> current_targets = nullptr;
std::atomic<bool> relay_active = false;

bool any_left(const Targets& targets) {
  for (std::size_t i = 0; i < targets.size; ++i) {
    if (targets.processes[i] != 0) return true;
  }
  return false;
}

void end_by_default(int number) {
  struct sigaction action = {};
  action.sa_handler = SIG_DFL;
  sigemptyset(&action.sa_mask);
  sigaction(number, &action, nullptr);
}

// The thread that the signal meets, as a rule that of main(), stays in here until the process ends:
// so it cannot return another exit code because its peers have gone.
extern "C" void fulmen_relay_signal(int number) {
  end_by_default(number);  // A second one ends this process at once.
  auto* targets = current_targets.load();
  if (targets != nullptr && targets->owner == ::getpid()) {
    relay_active = true;
    for (std::size_t i = 0; i < targets->size; ++i) {
      if (const pid_t process = targets->processes[i]; process != 0) ::kill(process, number);
    }
    constexpr timespec kTurn{.tv_sec = 0, .tv_nsec = 10'000'000};
    for (int turn = 0; turn < 300 && any_left(*targets); ++turn) ::nanosleep(&kTurn, nullptr);
  }
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  ::raise(number);
}

}  // namespace

SignalRelay::SignalRelay(std::vector<pid_t> processes) {
  auto targets = std::make_unique<Targets>();
  targets->owner = ::getpid();
  targets->size = processes.size();
  targets->processes = std::make_unique<std::atomic<pid_t>[]>(processes.size());
  for (std::size_t i = 0; i < processes.size(); ++i) targets->processes[i] = processes[i];
  current_targets = targets.release();
  for (const int number : {SIGINT, SIGTERM}) {
    struct sigaction before = {};
    sigaction(number, nullptr, &before);
    if ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL) continue;
    struct sigaction action = {};
    action.sa_handler = fulmen_relay_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, nullptr);
  }
}

SignalRelay::~SignalRelay() {
  // Not freed: whoever replaced the handler may put it back.
  if (auto* targets = current_targets.load()) targets->owner = 0;
}

void SignalRelay::forget(pid_t process) {
  auto* targets = current_targets.load();
  for (std::size_t i = 0; targets != nullptr && i < targets->size; ++i) {
    if (targets->processes[i] == process) targets->processes[i] = 0;
  }
}

bool SignalRelay::is_active() {
  return relay_active;
}

}  // namespace fulmen::detail
