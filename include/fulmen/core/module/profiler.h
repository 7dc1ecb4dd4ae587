#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "fulmen/core/module/hook_point.h"

namespace fulmen {

/// Told by the trainer what it does next. Called very often and from its thread only.
class Profiler {
 public:
  virtual ~Profiler() = default;
  /// From now on `hook` runs (callbacks and module alike); kOutside: the trainer's own work,
  /// reading batches among it.
  virtual void enter(HookPoint hook) = 0;
  /// Said at the end of a run.
  virtual std::string describe() const = 0;
};

struct SimpleProfilerOptions {
  std::function<std::chrono::steady_clock::time_point()> clock = {};  ///< Unset: the steady clock.
};

/// Sums up the time of each hook. Work that a device does later counts where somebody waits for it.
class SimpleProfiler final : public Profiler {
 public:
  static std::shared_ptr<SimpleProfiler> make(SimpleProfilerOptions options = {});

  void enter(HookPoint hook) override;
  /// A table of hooks, longest first: calls, seconds, share.
  std::string describe() const override;
  std::int64_t calls(HookPoint hook) const {
    return entries_[static_cast<std::size_t>(hook)].calls;
  }
  std::chrono::duration<double> time(HookPoint hook) const {
    return entries_[static_cast<std::size_t>(hook)].time;
  }

 private:
  struct Entry {
    std::int64_t calls = 0;
    std::chrono::duration<double> time = {};
  };

  explicit SimpleProfiler(SimpleProfilerOptions options) : options_(std::move(options)) {}
  std::chrono::steady_clock::time_point now() const;

  SimpleProfilerOptions options_;
  std::array<Entry, kHookPointCount> entries_;
  HookPoint current_ = HookPoint::kOutside;
  std::chrono::steady_clock::time_point since_ = {};
  bool started_ = false;
};

}  // namespace fulmen
