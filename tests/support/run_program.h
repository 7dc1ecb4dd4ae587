#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace fulmen {

/// How a program ended, and what it wrote to standard output and standard error.
struct ProgramResult {
  int exit_code = -1;  ///< 128 + the signal that ended it; -1: it was killed at the time limit.
  std::string output = {};
  std::chrono::duration<double> seconds = {};
};

struct ProgramOptions {
  std::vector<std::string> arguments;  ///< The first is the program, looked for in PATH.
  /// Set for it; an empty value removes the variable.
  std::map<std::string, std::string> variables = {};
  std::chrono::seconds time_limit{60};
};

/// A program in a process group of its own, whose output is collected. Killed, with its group, by
/// the destructor.
class Program {
 public:
  explicit Program(ProgramOptions options);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  pid_t pid() const { return pid_; }
  /// Reads until `text` was written; false if it ended or the time limit came before.
  bool wait_for_output(const std::string& text);
  ProgramResult wait();

 private:
  bool read_some(std::chrono::milliseconds timeout);

  ProgramOptions options_;
  pid_t pid_ = -1;
  int output_ = -1;
  std::string text_;
  std::chrono::steady_clock::time_point started_;
};

ProgramResult run_program(const ProgramOptions& options);
/// This test's own executable.
std::string own_program();
/// The path of a program in PATH; empty if there is none.
std::string find_program(const std::string& name);

/// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& file);

}  // namespace fulmen
