#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>

#include "fulmen/callbacks/model_checkpoint.h"
#include "tests/support/fake_trainer.h"

namespace fulmen {

/// A run as the trainer would drive it, with real checkpoint directories that hold the callback's
/// state.
class CheckpointRun {
 public:
  explicit CheckpointRun(const std::filesystem::path& directory,
                         ModelCheckpointOptions options = {});

  /// Starts fit; with `from`, as a run restored from that checkpoint.
  void start(const std::filesystem::path& from = {});
  /// One batch that takes a step.
  void batch();
  /// Validation that logs `val_loss`.
  void validate(std::optional<double> val_loss);
  void end_epoch();
  /// One batch, validation, end of the epoch.
  void epoch(std::optional<double> val_loss);
  void finish();

  /// Names in the directory, pointers and temporaries left out.
  std::set<std::string> checkpoints() const;
  /// What a pointer names; "" if there is none.
  std::string pointer(const std::string& name) const;
  int warnings(std::string_view part) const {
    return trainer.sink->count(LogLevel::kWarning, part);
  }

  FakeTrainer trainer;
  std::shared_ptr<ModelCheckpoint> callback;
  std::filesystem::path directory;
};

/// Writes a checkpoint that holds the state of `callback`.
void write_state(const std::filesystem::path& directory,
                 const ModelCheckpoint& callback,
                 const Progress& progress);

}  // namespace fulmen
