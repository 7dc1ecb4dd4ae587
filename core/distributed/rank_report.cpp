#include "core/distributed/rank_report.h"

#include <torch/torch.h>

#include <algorithm>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <sstream>
#include <utility>

namespace fulmen::detail {
namespace {

namespace json = boost::json;

/// Members of the group that had the same fate.
using Fates = std::vector<std::pair<std::string, std::vector<int>>>;

std::string subject(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 8;
  std::string text = ranks.size() == 1 ? "Rank " : "Ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMost); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return text;
}

RankReport::Group group_of(const RankReport& report, const std::string& key) {
  const auto it = report.groups.find(key);
  return it == report.groups.end() ? RankReport::Group{} : it->second;
}

std::string last_there(const RankReport::Group& group) {
  if (group.last.empty()) return "called nothing there yet";
  std::string text = "last there: ";
  if (group.last_sequence > 0) text += "collective " + std::to_string(group.last_sequence) + ", ";
  text += group.last;
  return group.last_sequence > 0 && group.finished >= group.last_sequence ? text + " (done)" : text;
}

/// Where it is now.
std::string whereabouts(const RankReport& report) {
  for (const auto& [key, group] : report.groups) {
    if (group.waiting == 0) continue;
    std::string text =
        group.failure == CollectiveFailure::kNone ? "waiting in " : "waited in vain in ";
    if (group.waiting == GroupLog::kPointToPoint) return text + group.last + " of " + group.name;
    if (group.waiting == group.last_sequence) text += group.last + ", ";
    return text + "collective " + std::to_string(group.waiting) + " of " + group.name;
  }
  std::ostringstream text;
  text << "in no collective for " << std::round(report.quiet_seconds * 10) / 10 << " s";
  return text.str();
}

std::string fate_of_the_silent(const RankAnswer& answer) {
  switch (answer.process) {
    case ProcessState::kEnded:
      return "ended";
    case ProcessState::kStopped:
      return "did not answer: the process is stopped";
    case ProcessState::kRuns:
      return "did not answer, though the process runs";
    case ProcessState::kUnknown:
      break;
  }
  return "did not answer: stopped, cut off, or busy elsewhere";
}

/// Empty: it came, and waited too.
std::string fate_in_time_out(const RankAnswer& answer,
                             const CollectiveRecord& record,
                             const std::string& key) {
  if (!answer.answered) return fate_of_the_silent(answer);
  const auto group = group_of(answer.report, key);
  const auto state =
      last_there(group) + "; " + (answer.report.left ? "left the job" : whereabouts(answer.report));
  if (record.is_point_to_point()) return "was elsewhere; " + state;
  if (group.started < record.sequence) return "did not come to it; " + state;
  if (group.last_sequence == record.sequence && group.last != record.describe())
    return "called " + group.last + " in its place";
  return {};
}

bool left_first(const RankAnswer& answer, const std::string& key) {
  return answer.report.left && group_of(answer.report, key).failure == CollectiveFailure::kNone;
}

/// Empty: it is none of those that ended.
std::string fate_in_break(const RankAnswer& answer,
                          const CollectiveRecord& record,
                          const std::string& key) {
  if (answer.process == ProcessState::kEnded) return "ended";
  if (left_first(answer, key)) return "left the job";
  if (!answer.answered) {
    return answer.process == ProcessState::kUnknown ? "did not answer: ended, cut off, or busy"
                                                    : fate_of_the_silent(answer);
  }
  const auto group = group_of(answer.report, key);
  if (!record.is_point_to_point() && group.last_sequence == record.sequence &&
      group.last != record.describe())
    return "called " + group.last + " in its place";
  return {};
}

}  // namespace

bool is_surely_gone(const RankAnswer& answer, const std::string& key) {
  return answer.process == ProcessState::kEnded || left_first(answer, key);
}

std::string RankReport::to_text() const {
  json::object list;
  for (const auto& [key, group] : groups) {
    list[key] = json::object{{"name", group.name},
                             {"started", group.started},
                             {"finished", group.finished},
                             {"waiting", group.waiting},
                             {"failure", static_cast<int>(group.failure)},
                             {"last_sequence", group.last_sequence},
                             {"last", group.last}};
  }
  return json::serialize(json::object{
      {"count", count}, {"left", left}, {"quiet_seconds", quiet_seconds}, {"groups", list}});
}

RankReport RankReport::from_text(std::string_view text) {
  try {
    const auto value = json::parse(text);
    RankReport report{.count = value.at("count").to_number<std::int64_t>(),
                      .left = value.at("left").as_bool(),
                      .quiet_seconds = value.at("quiet_seconds").to_number<double>()};
    for (const auto& entry : value.at("groups").as_object()) {
      const auto& item = entry.value();
      const auto number = [&item](const char* name) {
        return item.at(name).to_number<std::int64_t>();
      };
      report.groups[entry.key()] = {.name = std::string(item.at("name").as_string()),
                                    .started = number("started"),
                                    .finished = number("finished"),
                                    .waiting = number("waiting"),
                                    .failure = static_cast<CollectiveFailure>(number("failure")),
                                    .last_sequence = number("last_sequence"),
                                    .last = std::string(item.at("last").as_string())};
    }
    return report;
  } catch (const std::exception&) {
    return {};
  }
}

std::string explain_failure(const CollectiveRecord& record,
                            const std::string& key,
                            CollectiveFailure failure,
                            const RankAnswers& answers) {
  if (!answers.store_error.empty()) {
    std::string text =
        "What the other ranks did is not known: the store of the job, which rank 0 serves unless "
        "an agent does, " +
        answers.store_error + ".";
    for (const auto& answer : answers.ranks) {
      if (answer.process == ProcessState::kEnded || answer.process == ProcessState::kStopped)
        text += " " + subject({answer.rank}) + " " + fate_of_the_silent(answer) + ".";
    }
    return text;
  }
  // A rank that ran out of time closes its connections, and others see no more than that.
  const bool timed_out =
      failure == CollectiveFailure::kTimedOut ||
      std::ranges::any_of(answers.ranks, [&](const RankAnswer& answer) {
        return group_of(answer.report, key).failure == CollectiveFailure::kTimedOut;
      });
  const bool any_gone = std::ranges::any_of(
      answers.ranks, [&](const RankAnswer& answer) { return is_surely_gone(answer, key); });
  Fates fates;
  for (const auto& answer : answers.ranks) {
    // The others had no time to answer.
    if (!timed_out && any_gone && !is_surely_gone(answer, key)) continue;
    const auto fate =
        timed_out ? fate_in_time_out(answer, record, key) : fate_in_break(answer, record, key);
    if (fate.empty()) continue;
    auto it = std::ranges::find(fates, fate, [](const auto& item) { return item.first; });
    if (it == fates.end()) it = fates.insert(it, {fate, {}});
    it->second.push_back(answer.rank);
  }
  std::string text;
  for (const auto& [fate, ranks] : fates)
    text += (text.empty() ? "" : " ") + subject(ranks) + " " + fate + ".";
  if (!text.empty()) return text;
  return timed_out ? "All of its ranks came to it: the network between them is slow or broken, or "
                     "the time limit is too short."
                   : "A connection broke, but all of its ranks answer.";
}

}  // namespace fulmen::detail
