#include "core/distributed/launcher.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <future>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "core/distributed/signal_relay.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kPoll(50);
constexpr milliseconds kAfterEndOfOutput(2);  // A process closes its pipes just before it ends.
constexpr seconds kGrace(1);                  // For messages of ranks that fail for their peers.
constexpr seconds kUntilKill(4);              // From the first failure.
constexpr seconds kUntilExit(5);              // Then this process ends, if it hangs.
constexpr seconds kLastWait(30);              // For ranks still at work when this one has finished.
constexpr milliseconds kDrain(500);           // For pipes that a rank's own children hold open.
constexpr std::size_t kLongestLine = 1 << 16;

void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // Nobody reads our output any more.
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

/// Ends this process from the launcher's thread. What hangs elsewhere may hold the lock of a
/// stream.
[[noreturn]] void exit_now(int code) {
  const auto flushed = std::make_shared<std::promise<void>>();
  auto done = flushed->get_future();
  std::thread([flushed] {
    std::fflush(nullptr);
    flushed->set_value();
  }).detach();
  done.wait_for(milliseconds(300));
  ::_exit(code);
}

/// All signals are blocked while it lives, so that threads started meanwhile never handle one.
class BlockSignals {
 public:
  BlockSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockSignals(const BlockSignals&) = delete;
  BlockSignals& operator=(const BlockSignals&) = delete;
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_;
};

/// A pipe of a rank, passed on line by line.
struct Output {
  Output(asio::io_context& context, int read_end, int to_fd, int rank)
      : pipe(context, read_end), target(to_fd), prefix("[rank " + std::to_string(rank) + "] ") {}

  /// Whole lines, and at the end of the pipe the rest, in one write.
  void pass_on(std::size_t size, bool is_end) {
    line.append(buffer.data(), size);
    std::string text;
    std::size_t begin = 0;
    for (auto end = line.find('\n'); end != std::string::npos; end = line.find('\n', begin)) {
      text.append(prefix).append(line, begin, end + 1 - begin);
      begin = end + 1;
    }
    line.erase(0, begin);
    if ((is_end && !line.empty()) || line.size() > kLongestLine) {
      text.append(prefix).append(std::exchange(line, {})).append("\n");
    }
    write_all(target, text);
  }

  asio::posix::stream_descriptor pipe;
  int target;
  std::string prefix;
  std::string line = {};
  std::array<char, 4096> buffer = {};
};

struct Child {
  int rank = 0;
  pid_t pid = 0;
  bool ended = false;
};

struct Failure {
  std::string text;
  int code = 1;
  Clock::time_point time;
};

}  // namespace

/// All but the last block belongs to the launcher's thread.
struct Launcher::Impl {
  void run(const std::vector<ChildRank>& ranks, const sigset_t& mask, std::promise<void> started) {
    try {
      for (const auto& rank : ranks) start(rank, mask);
    } catch (...) {
      signal_all(SIGKILL);
      for (auto& child : children) ::waitpid(child.pid, nullptr, 0);
      started.set_exception(std::current_exception());
      return;
    }
    std::vector<pid_t> processes;
    for (const auto& child : children) processes.push_back(child.pid);
    relay.emplace(std::move(processes));
    started.set_value();  // `ranks` is dangling from here on.
    const auto stay = asio::make_work_guard(context);
    check_in(kPoll);
    context.run();
  }

  void start(const ChildRank& rank, const sigset_t& mask) {
    const auto started = start_child(rank, mask);
    children.push_back({.rank = rank.rank, .pid = started.pid});
    read(std::make_shared<Output>(context, started.output, STDOUT_FILENO, rank.rank));
    read(std::make_shared<Output>(context, started.errors, STDERR_FILENO, rank.rank));
    open_outputs += 2;
  }

  void read(const std::shared_ptr<Output>& output) {
    output->pipe.async_read_some(
        asio::buffer(output->buffer),
        [this, output](const boost::system::error_code& error, std::size_t size) {
          output->pass_on(size, static_cast<bool>(error));
          if (!error) return read(output);
          --open_outputs;
          check_in(kAfterEndOfOutput);
        });
  }

  /// Ranks are asked for in turns: a handler of SIGCHLD would be the host program's to install.
  void check_in(milliseconds pause) {
    timer.expires_after(pause);
    timer.async_wait([this](const boost::system::error_code& error) {
      if (!error) check();
    });
  }

  void check() {
    bool any_left = false;
    for (auto& child : children) any_left |= !reap(child);
    if (any_left) {
      end_what_must_end();
    } else if (!ended_at) {
      ended_at = Clock::now();
    }
    if (failure) {
      const auto since = Clock::now() - failure->time;
      if (since >= kGrace) announce_failure();
      if (since >= kUntilExit && !finishing) exit_now(failure->code);
    }
    const bool drained = open_outputs == 0 || (ended_at && Clock::now() - *ended_at > kDrain);
    if (ended_at && drained) report_end();
    if (any_left || !drained || (failure && !finishing)) check_in(kPoll);
  }

  /// Whether it has ended.
  bool reap(Child& child) {
    if (child.ended) return true;
    int status = 0;
    const pid_t got = ::waitpid(child.pid, &status, WNOHANG);
    if (got == 0 || (got < 0 && errno != ECHILD)) return false;
    // With SIGCHLD ignored by the host program, how it ended is not to be known.
    if (got < 0) status = 0;
    child.ended = true;
    relay->forget(child.pid);
    if (status != 0 && !failure && !signalled && !SignalRelay::is_active()) {
      failure = {.text = describe_end(child.rank, status),
                 .code = exit_code(status),
                 .time = Clock::now()};
    }
    return true;
  }

  void end_what_must_end() {
    const auto now = Clock::now();
    std::optional<Clock::time_point> since;
    if (finishing && own_code != 0) since = finish_time;
    if (failure) since = since ? std::min(*since, failure->time) : failure->time;
    if (since) {
      if (now - *since >= kGrace && !signalled) signal_all(SIGTERM);
      if (now - *since >= kUntilKill) signal_all(SIGKILL);
    } else if (finishing && now - finish_time >= kLastWait && !late) {
      late = true;
      write_all(STDERR_FILENO,
                "error: the first process has finished, but other ranks have not ended after " +
                    std::to_string(kLastWait.count()) + " s; they are killed.\n");
      signal_all(SIGKILL);
    }
  }

  void announce_failure() {
    if (!failure || std::exchange(announced, true)) return;
    const bool own_first = finishing && own_code != 0 && finish_time < failure->time;
    const auto own = "this process ends with exit code " + std::to_string(own_code);
    write_all(
        STDERR_FILENO,
        "error: " +
            (own_first ? own + ", after that " + failure->text : failure->text + "; the job ends") +
            ".\n");
  }

  void signal_all(int number) {
    signalled = true;
    for (const auto& child : children) {
      if (!child.ended) ::kill(child.pid, number);
    }
  }

  void report_end() {
    if (finishing) announce_failure();
    const std::lock_guard<std::mutex> lock(mutex);
    ended = true;
    if (!finishing) return;
    result = own_code != 0 ? own_code : failure ? failure->code : late ? 1 : 0;
    changed.notify_all();
  }

  asio::io_context context;
  asio::steady_timer timer{context};
  std::vector<Child> children;
  std::optional<SignalRelay> relay;
  int open_outputs = 0;
  std::optional<Failure> failure;  // The first one.
  std::optional<Clock::time_point> ended_at;
  bool finishing = false;
  int own_code = 0;
  Clock::time_point finish_time;
  bool signalled = false;  // How a rank ends after this says nothing.
  bool announced = false;
  bool late = false;

  std::thread thread;
  std::mutex mutex;
  std::condition_variable changed;
  std::atomic<bool> ended = false;
  std::optional<int> result;
};

Launcher::Launcher(const std::vector<ChildRank>& ranks) : impl_(std::make_unique<Impl>()) {
  std::promise<void> started;
  auto result = started.get_future();
  {
    const BlockSignals block;
    // The kernel ends the ranks with the thread that started them: it lives as long as they do.
    impl_->thread = std::thread(
        [impl = impl_.get(),
         &ranks,
         mask = block.before(),
         started = std::move(started)]() mutable { impl->run(ranks, mask, std::move(started)); });
  }
  try {
    result.get();
  } catch (...) {
    impl_->thread.join();
    throw;
  }
}

Launcher::~Launcher() {
  asio::post(impl_->context, [impl = impl_.get()] {
    impl->signal_all(SIGKILL);
    impl->context.stop();
  });
  impl_->thread.join();
}

int Launcher::finish(int own_code) {
  std::unique_lock<std::mutex> lock(impl_->mutex);
  impl_->result.reset();
  asio::post(impl_->context, [impl = impl_.get(), own_code] {
    impl->finishing = true;
    impl->own_code = own_code;
    impl->finish_time = Clock::now();
    impl->check();
  });
  const auto limit = kLastWait + seconds(10);
  impl_->changed.wait_for(lock, limit, [&] { return impl_->result.has_value(); });
  return impl_->result.value_or(own_code == 0 ? 1 : own_code);
}

bool Launcher::all_ended() const {
  return impl_->ended;
}

}  // namespace fulmen::detail
