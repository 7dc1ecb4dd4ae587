#include "core/distributed/collective_watch.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "core/distributed/store_probe.h"
#include "core/distributed/world_state.h"

namespace fulmen::detail {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr const char* kAsked = "watch/asked";

std::string report_key(int rank) {
  return "watch/" + std::to_string(rank);
}

/// All follow from the time limit, so that short ones can be tested.
struct Pauses {
  explicit Pauses(milliseconds limit)
      : look(std::clamp(limit / 16, milliseconds(10), milliseconds(1000))),
        quiet(std::clamp(limit / 8, milliseconds(20), milliseconds(30000))),
        probe(std::clamp(limit / 4, milliseconds(50), milliseconds(500))),
        report(std::max(look / 2, milliseconds(5))),
        until_asking(limit / 2),
        grace_after_time_out(std::clamp(limit / 2, milliseconds(200), milliseconds(2500))),
        grace_after_break(std::min(grace_after_time_out, milliseconds(600))) {}

  milliseconds look;          ///< Between looks at what was noted.
  milliseconds quiet;         ///< So long without events, and the rank listens to the store.
  milliseconds probe;         ///< For a connection.
  milliseconds report;        ///< Between reports of a quiet rank that was asked.
  milliseconds until_asking;  ///< In one wait.
  milliseconds grace_after_time_out;
  /// Shorter, as a launcher may end the other ranks a second after one has failed.
  milliseconds grace_after_break;
};

std::string first_line(const std::exception& error) {
  const auto text = text_of(error);
  return text.substr(0, text.find('\n'));
}

}  // namespace

/// Belongs to the thread and to the watch: the thread may be stuck in a store that stands still,
/// and is left to itself then.
struct CollectiveWatch::Impl {
  struct Job {
    std::function<void(Impl&)> work;
    bool done = false;
  };

  explicit Impl(Options given) : options(std::move(given)), pauses(options.timeout) {}

  // On the thread.

  void run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (!stop) {
      changed.wait_for(lock, pause, [this] { return stop || !jobs.empty(); });
      if (stop) break;
      const auto job = jobs.empty() ? nullptr : jobs.front();
      if (job != nullptr) jobs.pop_front();
      const auto noted = logs;
      lock.unlock();
      current = noted;
      try {
        job != nullptr ? job->work(*this) : look();
      } catch (const std::exception& error) {
        store_error = "does not answer (" + first_line(error) + ")";
      }
      lock.lock();
      if (job != nullptr) job->done = true;
      changed.notify_all();
    }
    lock.unlock();
    const bool tells = reporting || is_in_process(options.store);
    if (tells && store_error.empty()) say_that_it_left();
    lock.lock();
    ended = true;
    changed.notify_all();
  }

  /// A connection of its own: that of the rank may be in use for as long as a wait.
  c10d::Store& store() {
    if (own_store != nullptr) return *own_store;
    check_store();
    own_store = options.store->clone();
    std::vector<std::string> keys;
    for (int rank = 0; rank < options.world_size; ++rank)
      keys.push_back(options.identity_key(rank));
    std::vector<std::string> found;
    if (own_store->hasExtendedApi()) {
      for (const auto& value : own_store->multiGet(keys))
        found.emplace_back(value.begin(), value.end());
    } else {
      for (const auto& key : keys) found.push_back(own_store->get_to_str(key));
    }
    for (auto& text : found) text.erase(0, text.find(' ') + 1);
    const std::lock_guard<std::mutex> lock(mutex);
    identities = std::move(found);
    return *own_store;
  }

  /// The store may be gone because all is done, and that is to be no noise.
  void check_store() const {
    const auto failure = find_store_failure(options.store, pauses.probe);
    if (!failure.empty()) throw std::runtime_error(failure);
  }

  void look() {
    const auto now = Clock::now();
    std::int64_t events = 0;
    bool waits = false;
    for (const auto& log : current) {
      events += log->events();
      waits |= log->failure() == CollectiveFailure::kNone && log->read().waiting != 0;
    }
    pause = pauses.look;
    if (!store_error.empty()) return;
    store();  // Later it may be gone, and c10d takes long to find that out.
    if (events != seen_events) {
      seen_events = events;
      quiet_since = now;
      if (!std::exchange(reporting, false)) return;
      check_store();
      report();  // That it goes on.
      if (std::exchange(asking, false)) store().deleteKey(kAsked);
      return;
    }
    const auto quiet = now - quiet_since;
    if (quiet < pauses.quiet) return;
    check_store();
    asking |= waits && quiet >= pauses.until_asking;
    if (asking) store().set(kAsked, "1");
    if (!asking && !store().check({kAsked})) return;
    reporting = true;
    report();
    pause = pauses.report;
  }

  void report(bool left = false) {
    RankReport report{.count = ++reports, .left = left};
    report.quiet_seconds = std::chrono::duration<double>(Clock::now() - quiet_since).count();
    for (const auto& log : current) {
      const auto state = log->read();
      report.groups[log->key()] = {
          .name = log->name(),
          .started = state.started,
          .finished = state.finished,
          .waiting = state.waiting,
          .failure = state.failure,
          .last_sequence = state.last.sequence,
          .last = log->events() == 0 ? std::string() : state.last.describe()};
    }
    store().set(report_key(options.rank), report.to_text());
  }

  void say_that_it_left() noexcept {
    try {
      check_store();
      report(true);
    } catch (const std::exception&) {
    }
  }

  RankReport read_report(int rank) {
    const auto key = report_key(rank);
    if (!store().check({key})) return {};
    return RankReport::from_text(store().get_to_str(key));
  }

  /// Whether nothing that it says later would be news.
  static bool is_settled(const RankAnswer& answer, const Question& question) {
    if (answer.process == ProcessState::kEnded || answer.process == ProcessState::kStopped)
      return true;
    if (!answer.answered) return false;
    const auto it = answer.report.groups.find(question.key);
    if (answer.report.left || it == answer.report.groups.end() || question.sequence == 0)
      return true;
    const auto& group = it->second;
    return group.started < question.sequence || group.finished >= question.sequence ||
           group.failure != CollectiveFailure::kNone;
  }

  void find_out(const Question& question, RankAnswers& answers) {
    check_store();
    asking = reporting = true;
    store().set(kAsked, "1");
    report();
    for (const int rank : question.ranks)
      answers.ranks.push_back({.rank = rank, .report = read_report(rank)});
    std::vector<std::int64_t> old;
    for (auto& answer : answers.ranks) {
      old.push_back(answer.report.count);
      // A failure is the last that happens on a group, so it cannot be old news.
      const auto it = answer.report.groups.find(question.key);
      answer.answered = answer.report.left || (it != answer.report.groups.end() &&
                                               it->second.failure != CollectiveFailure::kNone);
    }
    const bool timed_out = question.failure == CollectiveFailure::kTimedOut;
    const auto end =
        Clock::now() + (timed_out ? pauses.grace_after_time_out : pauses.grace_after_break);
    const auto settled = [&](const RankAnswer& answer) { return is_settled(answer, question); };
    const auto gone = [&](const auto& answer) { return is_surely_gone(answer, question.key); };
    while (!std::ranges::all_of(answers.ranks, settled) && Clock::now() < end) {
      find_processes(answers.ranks);
      if (!timed_out && std::ranges::any_of(answers.ranks, gone)) return;
      std::this_thread::sleep_for(pauses.report / 2);
      for (std::size_t i = 0; i < answers.ranks.size(); ++i) {
        auto& answer = answers.ranks[i];
        if (settled(answer)) continue;
        answer.report = read_report(answer.rank);
        answer.answered |= answer.report.count > old[i];
      }
    }
  }

  // On any thread.

  /// Of ranks that have not answered.
  void find_processes(std::vector<RankAnswer>& ranks) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (identities.empty()) return;
    for (auto& answer : ranks) {
      if (!answer.answered)
        answer.process = process_state(identities[static_cast<std::size_t>(answer.rank)]);
    }
  }

  /// Whether it was done within the limit.
  bool ask_thread(std::function<void(Impl&)> work, milliseconds limit) {
    std::unique_lock<std::mutex> lock(mutex);
    const auto job = std::make_shared<Job>(Job{.work = std::move(work)});
    jobs.push_back(job);
    changed.notify_all();
    return changed.wait_for(lock, limit, [&] { return job->done; });
  }

  const Options options;
  const Pauses pauses;

  std::mutex mutex;  // Of this block.
  std::condition_variable changed;
  bool stop = false;
  bool ended = false;
  std::deque<std::shared_ptr<Job>> jobs;
  std::vector<std::shared_ptr<GroupLog>> logs;
  std::vector<std::string> identities;  ///< By rank; empty until they are known.

  // Of the thread.
  c10::intrusive_ptr<c10d::Store> own_store;
  std::vector<std::shared_ptr<GroupLog>> current;
  milliseconds pause = pauses.look;
  std::string store_error;
  std::int64_t seen_events = -1;
  std::int64_t reports = 0;
  Clock::time_point quiet_since = Clock::now();
  bool asking = false;     ///< The key is there, from this rank.
  bool reporting = false;  ///< The last report says that this rank is quiet.
};

CollectiveWatch::CollectiveWatch(Options options)
    : impl_(std::make_shared<Impl>(std::move(options))) {
  std::thread([impl = impl_] { impl->run(); }).detach();
}

CollectiveWatch::~CollectiveWatch() {
  std::unique_lock<std::mutex> lock(impl_->mutex);
  impl_->stop = true;
  impl_->changed.notify_all();
  impl_->changed.wait_for(lock, milliseconds(300), [this] { return impl_->ended; });
}

std::shared_ptr<GroupLog> CollectiveWatch::add_group(std::string key, std::string name) {
  auto log = std::make_shared<GroupLog>(std::move(key), std::move(name));
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  impl_->logs.push_back(log);
  return log;
}

RankAnswers CollectiveWatch::ask(Question question) {
  const auto& pauses = impl_->pauses;
  const bool timed_out = question.failure == CollectiveFailure::kTimedOut;
  const auto limit = timed_out ? pauses.grace_after_time_out + milliseconds(1000)
                               : pauses.grace_after_break + milliseconds(400);
  struct Result {
    RankAnswers answers;
    std::string error;
  };
  // The thread may still write to it after the limit.
  const auto result = std::make_shared<Result>();
  RankAnswers unknown{.store_error = "does not answer"};
  for (const int rank : question.ranks) unknown.ranks.push_back({.rank = rank});
  const auto work = [result, question = std::move(question)](Impl& impl) {
    try {
      impl.find_out(question, result->answers);
    } catch (const std::exception& error) {
      result->error = "does not answer (" + first_line(error) + ")";
      throw;
    }
  };
  if (impl_->ask_thread(work, limit)) {
    if (result->error.empty()) return result->answers;
    unknown.store_error = result->error;
  }
  impl_->find_processes(unknown.ranks);
  return unknown;
}

void CollectiveWatch::leave() noexcept {
  try {
    impl_->ask_thread([](Impl& impl) { impl.say_that_it_left(); }, milliseconds(300));
  } catch (const std::exception&) {
  }
}

}  // namespace fulmen::detail
