#pragma once

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "tests/strategies/ddp_ranks.h"

namespace fulmen {

using WorldPointer = std::shared_ptr<World>;
using Clock = std::chrono::steady_clock;

/// Seconds. Who waits in vain does so for the 60 s of run_thread_ranks.
inline constexpr double kPromptly = 20;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// How a rank ended.
struct End {
  std::string kind = {};  ///< Of its exception; empty: none came.
  std::string error = {};
  double seconds = 0;
};
inline void PrintTo(const End& end, std::ostream* out) {
  *out << end.kind << " \"" << end.error << "\" after " << end.seconds << " s";
}

/// In order of rank.
inline std::vector<End> ends_of(int ranks, const std::function<void(const WorldPointer&)>& body) {
  std::mutex mutex;
  std::vector<End> ends(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](const WorldPointer& world) {
    const auto start = Clock::now();
    End end;
    const auto keep = [&end](const char* kind, const std::exception& error) {
      end.kind = kind;
      end.error = error.what();
    };
    try {
      body(world);
    } catch (const DistributedError& error) {
      keep("DistributedError", error);
    } catch (const ConfigError& error) {
      keep("ConfigError", error);
    } catch (const DataError& error) {
      keep("DataError", error);
    } catch (const std::exception& error) {
      keep("another", error);
    }
    end.seconds = seconds_since(start);
    const std::lock_guard<std::mutex> lock(mutex);
    ends[static_cast<std::size_t>(world->rank())] = end;
  });
  EXPECT_THAT(ends, testing::Each(testing::Field(&End::seconds, testing::Lt(kPromptly))));
  return ends;
}

inline std::vector<MeshAxis> mesh(int data, int model) {
  return {{.name = "data", .size = data}, {.name = "model", .size = model}};
}

}  // namespace fulmen
