#pragma once

#include <mutex>

#include "tests/trainer/toy.h"

namespace fulmen {

inline TrainerOptions quiet(const std::shared_ptr<World>& world, std::vector<MeshAxis> mesh = {}) {
  TrainerOptions options;
  options.strategy = DdpStrategy::make({.mesh = std::move(mesh), .world = world});
  options.devices = world->size();
  options.loggers.emplace();
  options.enable_checkpointing = false;
  options.enable_progress_bar = false;
  options.enable_model_summary = false;
  options.max_epochs = 1;
  options.signals = SignalHandling::kNone;
  options.num_sanity_val_steps = 0;
  return options;
}

/// Batches of a rank as they are, not shared out.
inline TrainerOptions own_data(const std::shared_ptr<World>& world,
                               std::vector<MeshAxis> mesh = {}) {
  auto options = quiet(world, std::move(mesh));
  options.use_distributed_sampler = false;
  return options;
}

/// What each rank throws, in order of rank.
inline std::vector<std::string> errors_of(
    int ranks, const std::function<void(const std::shared_ptr<World>&)>& body) {
  std::mutex mutex;
  std::vector<std::string> errors(static_cast<std::size_t>(ranks));
  run_thread_ranks(ranks, [&](const std::shared_ptr<World>& world) {
    std::string text;
    try {
      body(world);
    } catch (const std::exception& error) {
      text = error.what();
    }
    const std::lock_guard<std::mutex> lock(mutex);
    errors[static_cast<std::size_t>(world->rank())] = text;
  });
  return errors;
}

}  // namespace fulmen
