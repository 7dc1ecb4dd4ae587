// What the ranks of launch_process_test and join_process_test do: the tests start this program
// again with --role, and Fulmen, mpirun or torchrun starts that one once for each rank.
#include "tests/core/distributed/launch_roles.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <thread>

#include "fulmen/core/distributed/collectives.h"
#include "fulmen/core/distributed/job.h"
#include "fulmen/core/support/log.h"

namespace fulmen {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLimit = kRoleLimit;

double sum_of_ranks(const std::shared_ptr<World>& world) {
  auto value = at::scalar_tensor(world->rank() + 1.0, at::kDouble);
  all_reduce(value, ReduceOp::kSum, world->all());
  return value.item<double>();
}

void say(const std::shared_ptr<World>& world) {
  const auto sum = sum_of_ranks(world);
  std::cout << "rank " << world->rank() << " sum " << sum << std::endl;
}

std::shared_ptr<World> join(const JobOptions& options) {
  Log log;
  return join_job(options, log);
}

/// Rank 1 fails in the way that is named. The others wait for it in a collective of a group that
/// was made before, or in one that is being made if the name begins with "early_".
int fail_on_rank_one(std::string how, const std::shared_ptr<World>& world) {
  if (how.starts_with("early_")) {
    how.erase(0, 6);
  } else {
    say(world);
  }
  if (world->rank() == 1) {
    if (how == "throw") throw std::runtime_error("something broke on rank 1");
    if (how == "exit") std::_Exit(3);
    if (how == "kill") ::raise(SIGKILL);
    if (how == "hang") std::this_thread::sleep_for(kLimit);
  }
  say(world);
  return 0;
}

/// Rank 1 exits with 3. The first process is in its own code, and rank 2 does not heed SIGTERM.
int hang(const std::shared_ptr<World>& world) {
  if (world->rank() == 1) std::_Exit(3);
  if (world->rank() == 2) ::signal(SIGTERM, SIG_IGN);
  std::cout << "a line of rank " << world->rank() << "\n";  // Not flushed.
  std::this_thread::sleep_for(kLimit);
  return 0;
}

int wait_here(const std::shared_ptr<World>& world) {
  std::cout << ("pid " + std::to_string(::getpid()) + " of rank " + std::to_string(world->rank()) +
                " waits\n")
            << std::flush;
  std::this_thread::sleep_for(kLimit);
  return 0;
}

extern "C" void say_signal(int number) {
  constexpr std::string_view kText = "tidied up\n";
  if (::write(STDOUT_FILENO, kText.data(), kText.size()) > 0) ::_exit(128 + number);
}

int print_all_kinds_of_output(const std::shared_ptr<World>& world) {
  if (world->rank() != 1) return 0;
  std::this_thread::sleep_for(milliseconds(500));  // The first process has finished.
  std::cerr << "to errors\n";
  std::cout << "input ends at once: " << (std::cin.get() == EOF) << "\n\n";
  for (int i = 0; i < 3; ++i) std::cout << std::string(9000, 'x') << "\n";
  std::cout << std::string(100000, 'Z') << "\nno newline";
  return 0;
}

/// A copy made by fork is none of the job's business, nor are the job's ranks its own.
int fork_and_exit(const std::shared_ptr<World>& world) {
  const pid_t copy = ::fork();
  if (copy == 0) std::exit(0);
  int status = -1;
  ::waitpid(copy, &status, 0);
  say(world);
  return status == 0 ? 0 : 9;
}

bool has_open(const std::string& file) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (std::filesystem::read_symlink(entry.path(), ignored) == file) return true;
  }
  return false;
}

int play_alone(const std::string& role, const std::vector<std::string>& arguments) {
  const JobOptions two{.devices = 2, .timeout = kLimit};
  if (role == "never") {
    return join({.devices = 2, .launch = Launch::kNever, .timeout = kLimit})->size() == 2 ? 0 : 1;
  }
  if (role == "nodes") return join({.devices = 2, .num_nodes = 2})->size();
  if (role == "brief") return join({.devices = 2, .timeout = seconds(2)})->size();
  if (role == "one_then_two") return join({})->size() + join(two)->size();
  if (role == "files") {
    const auto* ours = std::getenv("FULMEN_LAUNCHED");
    if (ours == nullptr && ::open("/etc/passwd", O_RDONLY) < 0) return 1;
    join(two);
    std::cout << "open " << has_open("/etc/passwd") << std::endl;
    return 0;
  }
  if (role == "arguments") {
    join(two);
    for (const auto& argument : arguments) std::cout << "<" << argument << ">";
    std::cout << std::endl;
    return 0;
  }
  if (role == "tidy") {
    const auto world = join(two);
    if (world->rank() == 1) ::signal(SIGTERM, say_signal);
    return wait_here(world);
  }
  throw std::runtime_error("there is no role " + role);
}

int play(const std::string& role, int devices) {
  const JobOptions options{.devices = devices,
                           .timeout = role == "hang_in_time" ? seconds(3) : kLimit};
  if (role == "launch") {
    return launch(devices, [&] {
      const auto world = join(options);
      say(world);
      return world->rank() == 2 ? 4 : 0;
    });
  }
  const auto world = join(options);
  if (role == "sum") say(world);
  if (role == "twice") {
    say(world);
    say(join(options));
  }
  if (role == "return_seven") return 7;
  if (role == "throw_first") {
    if (world->rank() == 0) throw std::runtime_error("something broke on rank 0");
    return wait_here(world);
  }
  if (role == "threads") std::cout << "threads " << at::get_num_threads() << std::endl;
  if (role == "wait") {
    world->all();
    return wait_here(world);
  }
  if (role == "hang") return hang(world);
  if (role == "hang_in_time") return fail_on_rank_one("hang", world);
  if (role == "output") return print_all_kinds_of_output(world);
  if (role == "fork") return fork_and_exit(world);
  if (role == "late_failure" && world->rank() == 1) {
    std::this_thread::sleep_for(milliseconds(300));
    return 5;
  }
  if (role.starts_with("fail_")) return fail_on_rank_one(role.substr(5), world);
  return 0;
}

}  // namespace

std::vector<std::string> role_command(const std::string& role, int devices) {
  return {own_program(), "--role", role, std::to_string(devices)};
}

ProgramResult run_role(const std::string& role,
                       int devices,
                       std::map<std::string, std::string> variables,
                       std::vector<std::string> launcher) {
  for (const auto& part : role_command(role, devices)) launcher.push_back(part);
  return run_program(
      {.arguments = launcher, .variables = std::move(variables), .time_limit = kRoleLimit});
}

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// The exit code of this process as a rank.
static int play_role(const std::string& role, const std::vector<std::string>& arguments) {
  try {
    for (const auto* alone :
         {"never", "nodes", "brief", "one_then_two", "files", "arguments", "tidy"}) {
      if (role == alone) return play_alone(role, arguments);
    }
    return play(role, std::stoi(arguments.at(0)));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace fulmen

int main(int argc, char** argv) {
  if (argc > 3 && std::string(argv[1]) == "--role")
    return fulmen::play_role(argv[2], {argv + 3, argv + argc});
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
