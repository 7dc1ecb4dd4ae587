#include "tests/support/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace fulmen {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

Program::Program(ProgramOptions options) : options_(std::move(options)), started_(Clock::now()) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  std::vector<char*> arguments;
  for (auto& argument : options_.arguments) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(ends[1], STDOUT_FILENO);
    ::dup2(ends[1], STDERR_FILENO);
    for (const auto& [name, value] : options_.variables) {
      value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
    }
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  output_ = ends[0];
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) ::close(output_);
}

bool Program::read_some(milliseconds timeout) {
  pollfd ready{.fd = output_, .events = POLLIN, .revents = 0};
  if (::poll(&ready, 1, static_cast<int>(timeout.count())) <= 0) return true;
  std::array<char, 4096> buffer{};
  const auto size = ::read(output_, buffer.data(), buffer.size());
  if (size > 0) text_.append(buffer.data(), static_cast<std::size_t>(size));
  return size > 0;
}

bool Program::wait_for_output(const std::string& text) {
  while (text_.find(text) == std::string::npos) {
    if (Clock::now() - started_ > options_.time_limit || !read_some(milliseconds(50))) return false;
  }
  return true;
}

ProgramResult Program::wait() {
  ProgramResult result;
  int status = 0;
  bool ended = false;
  while (!ended && Clock::now() - started_ <= options_.time_limit) {
    read_some(milliseconds(20));
    ended = ::waitpid(pid_, &status, WNOHANG) == pid_;
  }
  if (ended) {
    result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    // Those it left behind may hold the pipe open: what is there now is all that counts.
    for (std::size_t before = 0; before != text_.size();) {
      before = text_.size();
      read_some(milliseconds(20));
    }
  }
  ::kill(-pid_, SIGKILL);
  if (!ended) ::waitpid(pid_, &status, 0);
  pid_ = -1;
  result.output = text_;
  result.seconds = Clock::now() - started_;
  return result;
}

ProgramResult run_program(const ProgramOptions& options) {
  return Program(options).wait();
}

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

std::string find_program(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::string folders = path == nullptr ? "" : path;
  folders += ':';
  for (std::size_t begin = 0, end = 0; (end = folders.find(':', begin)) != std::string::npos;
       begin = end + 1) {
    const auto file = folders.substr(begin, end - begin) + "/" + name;
    if (::access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "fulmen-test-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace fulmen
