#include "fulmen/core/module/profiler.h"

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <vector>

namespace fulmen {

std::shared_ptr<SimpleProfiler> SimpleProfiler::make(SimpleProfilerOptions options) {
  return std::shared_ptr<SimpleProfiler>(new SimpleProfiler(std::move(options)));
}

std::chrono::steady_clock::time_point SimpleProfiler::now() const {
  return options_.clock ? options_.clock() : std::chrono::steady_clock::now();
}

void SimpleProfiler::enter(HookPoint hook) {
  const auto time = now();
  if (started_) entries_[static_cast<std::size_t>(current_)].time += time - since_;
  started_ = true;
  since_ = time;
  current_ = hook;
  ++entries_[static_cast<std::size_t>(hook)].calls;
}

std::string SimpleProfiler::describe() const {
  std::vector<std::size_t> order;
  std::chrono::duration<double> total = {};
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    total += entries_[i].time;
    if (entries_[i].calls > 0) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](auto a, auto b) {
    return entries_[a].time > entries_[b].time;
  });
  std::ostringstream text;
  text << std::left << std::setw(30) << "Hook" << std::right << std::setw(10) << "Calls"
       << std::setw(14) << "Seconds" << std::setw(9) << "Share";
  for (const auto i : order) {
    const auto hook = static_cast<HookPoint>(i);
    const auto share = total.count() > 0 ? 100 * entries_[i].time.count() / total.count() : 0;
    text << "\n"
         << std::left << std::setw(30)
         << (hook == HookPoint::kOutside ? "(trainer and data)" : to_string(hook)) << std::right
         << std::setw(10) << entries_[i].calls << std::setw(14) << std::fixed
         << std::setprecision(6) << entries_[i].time.count() << std::setw(8) << std::setprecision(1)
         << share << "%";
  }
  return text.str();
}

}  // namespace fulmen
