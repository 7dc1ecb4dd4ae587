#include "tools/run/rank_group.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::chrono::milliseconds kDrain(500);  // For pipes that a rank's own children hold open.

/// All signals wait while it lives.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  const sigset_t& before() const { return before_; }

 private:
  sigset_t before_;
};

}  // namespace

struct RankGroup::Child {
  explicit Child(boost::asio::io_context& context) : drain_timer(context) {}
  int rank = 0;
  pid_t pid = 0;
  int status = 0;
  bool ended = false;
  int open_pipes = 2;
  bool drained = false;
  std::shared_ptr<RankOutput> output;
  std::shared_ptr<RankOutput> errors;
  boost::asio::steady_timer drain_timer;
};

RankGroup::RankGroup(boost::asio::io_context& context,
                     Terminal& terminal,
                     const RunOptions& options,
                     RankGroupEvents events)
    : context_(context),
      terminal_(terminal),
      options_(options),
      events_(std::move(events)),
      child_signals_(context, SIGCHLD),
      timer_(context) {}

RankGroup::~RankGroup() {
  for (const auto& child : children_) {
    if (!child->ended) {
      ::kill(-child->pid, SIGKILL);
      ::waitpid(child->pid, nullptr, 0);
    }
    child->output->close();
    child->errors->close();
    child->drain_timer.cancel();
  }
}

void RankGroup::start(const std::vector<ChildRank>& ranks, int round) {
  watch();
  for (const auto& rank : ranks) start_one(rank, round);
  reap();
}

void RankGroup::start_one(const ChildRank& rank, int round) {
  const auto log = open_log(rank.rank, round);
  // Until it is another program, a signal would run a handler of ours in it.
  const BlockedSignals blocked;
  const auto started = start_child(rank, blocked.before());
  ::setpgid(started.pid, started.pid);  // As the rank does, whoever comes first.
  const auto child = std::make_shared<Child>(context_);
  child->rank = rank.rank;
  child->pid = started.pid;
  const auto prefix = "[rank " + std::to_string(rank.rank) + "] ";
  const auto on_end = [this, weak = std::weak_ptr<Child>(child)] {
    if (const auto self = weak.lock(); self != nullptr && --self->open_pipes == 0) drain(self);
  };
  child->output = std::make_shared<RankOutput>(
      context_,
      terminal_,
      RankOutputOptions{.pipe = started.output,
                        .prefix = prefix,
                        .terminal_fd = options_.to_terminal.output ? STDOUT_FILENO : -1,
                        .file = options_.to_files.output ? log : nullptr,
                        .on_end = on_end});
  child->errors = std::make_shared<RankOutput>(
      context_,
      terminal_,
      RankOutputOptions{.pipe = started.errors,
                        .prefix = prefix,
                        .terminal_fd = options_.to_terminal.errors ? STDERR_FILENO : -1,
                        .file = options_.to_files.errors ? log : nullptr,
                        .on_end = on_end});
  children_.push_back(child);
  child->output->start();
  child->errors->start();
}

std::shared_ptr<OwnedFile> RankGroup::open_log(int rank, int round) const {
  if (options_.log_dir.empty()) return nullptr;
  const auto folder = options_.log_dir / ("round_" + std::to_string(round));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const auto file = folder / ("rank_" + std::to_string(rank) + ".log");
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    fail<DistributedError>("--log-dir",
                           "cannot write ",
                           file.string(),
                           ": ",
                           std::generic_category().message(errno),
                           ". Give a folder that can be written.");
  }
  return std::make_shared<OwnedFile>(fd);
}

void RankGroup::watch() {
  child_signals_.async_wait([this](const boost::system::error_code& error, int) {
    if (error) return;
    watch();
    reap();
  });
}

void RankGroup::reap() {
  for (const auto& child : children_) {
    if (child->ended) continue;
    siginfo_t info = {};
    const auto id = static_cast<id_t>(child->pid);
    if (::waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) continue;
    // What it left in its process group ends too; its number is nobody else's until it is reaped.
    ::kill(-child->pid, SIGKILL);
    ::waitpid(child->pid, &child->status, 0);
    child->ended = true;
    ended_.push_back(child);
    child->drain_timer.expires_after(kDrain);
    child->drain_timer.async_wait([this, child](const boost::system::error_code& error) {
      if (!error) drain(child);
    });
    if (child->open_pipes == 0) drain(child);
  }
}

void RankGroup::drain(const std::shared_ptr<Child>& child) {
  if (!child->ended || child->drained) return;
  child->drained = true;
  child->drain_timer.cancel();
  child->output->close();
  child->errors->close();
  report();
}

void RankGroup::report() {
  while (!ended_.empty() && ended_.front()->drained) {
    const auto child = ended_.front();
    ended_.erase(ended_.begin());
    if (child->status != 0 && !asked_to_end_) {
      events_.on_failure({.rank = child->rank,
                          .code = exit_code(child->status),
                          .text = describe_end(child->rank, child->status),
                          .last_lines = child->errors->last_lines()});
    }
  }
  const auto is_done = [](const auto& child) { return child->ended && child->drained; };
  if (!std::all_of(children_.begin(), children_.end(), is_done)) return;
  if (std::exchange(reported_end_, true)) return;
  timer_.cancel();
  events_.on_all_ended();
}

void RankGroup::hand_on(int signal) {
  asked_to_end_ = true;
  for (const auto& child : children_) {
    if (!child->ended) ::kill(child->pid, signal);
  }
}

void RankGroup::end(std::chrono::milliseconds grace) {
  asked_to_end_ = true;
  if (grace.count() <= 0) return signal_groups(SIGKILL);
  signal_groups(SIGTERM);
  timer_.expires_after(grace);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) signal_groups(SIGKILL);
  });
}

void RankGroup::signal_groups(int signal) {
  for (const auto& child : children_) {
    if (child->ended) continue;
    ::kill(-child->pid, signal);
  }
}

bool RankGroup::any_left() const {
  return std::any_of(
      children_.begin(), children_.end(), [](const auto& child) { return !child->ended; });
}

}  // namespace fulmen::detail
