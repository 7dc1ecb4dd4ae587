#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "fulmen/core/support/state_dict.h"
#include "tests/support/run_program.h"

namespace fulmen {

/// A training on as many ranks as were started, with dropout, shuffling and a checkpoint each third
/// step, that resumes by itself; it is this test's own program. Rank 0 prints "batch N" and writes
/// the final weights.
struct TrainingRun {
  std::filesystem::path folder;
  /// "KIND:RANK:BATCH": what a rank does before a batch of its first start: throw, kill (SIGKILL),
  /// term (SIGTERM to itself), hang. It prints "fault at MILLISECONDS", of the host's clock.
  std::string fault = "none";
  int devices = 0;         ///< Ranks that the program itself starts; 0: those of its launcher.
  int batch_size = 2;      ///< Of a rank.
  int pause = 0;           ///< Milliseconds before each batch.
  int time_limit = 30000;  ///< Milliseconds that a collective may take.
};

/// Program and arguments.
std::vector<std::string> command_of(const TrainingRun& run);
TensorMap weights_of(const std::filesystem::path& folder);
void expect_same_weights(const std::filesystem::path& folder,
                         const std::filesystem::path& expected);

/// Milliseconds from the fault to now.
std::optional<double> since_fault(const std::string& output);

/// What the program does if its arguments are those of a training; nothing otherwise.
std::optional<int> train_if_told_so(int argc, char** argv);

}  // namespace fulmen
