#include "tools/run/terminal.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

namespace fulmen::detail {

constexpr std::size_t kFull = 1 << 20;
constexpr std::chrono::seconds kLastWrites(2);

struct Terminal::State {
  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return closing || !texts.empty(); });
      if (texts.empty()) break;
      const auto [fd, text] = std::move(texts.front());
      texts.pop_front();
      lock.unlock();
      write_all(fd, text);
      lock.lock();
      waiting -= text.size();
    }
    finished = true;
    changed.notify_all();
  }

  mutable std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::pair<int, std::string>> texts;
  std::size_t waiting = 0;  // Bytes.
  bool closing = false;
  bool finished = false;
};

Terminal::Terminal() : state_(std::make_shared<State>()) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([state = state_] { state->run(); }).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Terminal::~Terminal() {
  std::unique_lock<std::mutex> lock(state_->mutex);
  state_->closing = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, kLastWrites, [&] { return state_->finished; });
}

void Terminal::write(int fd, std::string text) {
  if (text.empty()) return;
  const std::lock_guard<std::mutex> lock(state_->mutex);
  state_->waiting += text.size();
  state_->texts.emplace_back(fd, std::move(text));
  state_->changed.notify_all();
}

void Terminal::say(const std::string& text) {
  write(STDERR_FILENO, "fulmen-run: " + text + "\n");
}

bool Terminal::is_full() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->waiting > kFull;
}

void write_all(int fd, const std::string& text) {
  std::string_view rest(text);
  while (!rest.empty()) {
    const auto written = ::write(fd, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace fulmen::detail
