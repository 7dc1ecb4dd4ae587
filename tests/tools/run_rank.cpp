// What the ranks of run_test do: run_rank ROLE [ARGUMENTS...]. It does not know torch.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int number(const char* name) {
  const auto text = variable(name);
  return text.empty() ? -1 : std::stoi(text);
}

void say(const std::string& text) {
  std::cout << text + "\n" << std::flush;
}

/// At most as long as any test waits.
int wait_here() {
  say("pid " + std::to_string(::getpid()) + " of rank " + variable("RANK") + " of " +
      variable("WORLD_SIZE") + " waits, restart " + variable("TORCHELASTIC_RESTART_COUNT"));
  std::this_thread::sleep_for(std::chrono::seconds(60));
  return 0;
}

extern "C" void end_by_signal(int) {
  constexpr char kText[] = "tidied up\n";
  if (::write(STDOUT_FILENO, kText, sizeof kText - 1) > 0) ::_exit(0);
}

int fail(const std::string& how) {
  if (how == "kill") ::raise(SIGKILL);
  std::cerr << "first line\nthe reason of rank " << variable("RANK") << std::endl;
  return std::stoi(how);
}

int print_place() {
  std::string text = "place";
  for (const auto* name : {"RANK",
                           "WORLD_SIZE",
                           "LOCAL_RANK",
                           "LOCAL_WORLD_SIZE",
                           "GROUP_RANK",
                           "MASTER_ADDR",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_RESTART_COUNT",
                           "TORCHELASTIC_MAX_RESTARTS",
                           "OMP_NUM_THREADS",
                           "FULMEN_STORE"}) {
    text += " " + variable(name);
  }
  say(text);
  return number("MASTER_PORT") > 0 ? 0 : 9;
}

int play(const std::vector<std::string>& arguments) {
  const auto& role = arguments.at(0);
  const bool is_chosen = arguments.size() > 1 && variable("RANK") == arguments[1];
  if (role == "place") return print_place();
  if (role == "arguments") {
    std::string text = "arguments";
    for (const auto& argument : arguments) text += " <" + argument + ">";
    say(text);
    std::cerr << "to errors" << std::endl;
    return 0;
  }
  if (role == "wait") return wait_here();
  // fail RANK HOW: the others wait.
  if (role == "fail") return is_chosen ? fail(arguments.at(2)) : wait_here();
  // fail_until RANK HOW RESTARTS: all is well from that restart on.
  if (role == "fail_until") {
    if (number("TORCHELASTIC_RESTART_COUNT") >= std::stoi(arguments.at(3))) return print_place();
    return is_chosen ? fail(arguments.at(2)) : wait_here();
  }
  // Until a restart has come.
  if (role == "wait_for_restart")
    return number("TORCHELASTIC_RESTART_COUNT") > 0 ? print_place() : wait_here();
  if (role == "tidy") {
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) ::signal(signal, end_by_signal);
    return wait_here();
  }
  if (role == "stubborn") {
    ::signal(SIGTERM, SIG_IGN);
    return is_chosen ? fail(arguments.at(2)) : wait_here();
  }
  std::cerr << "there is no role " << role << std::endl;
  return 99;
}

}  // namespace

int main(int argc, char** argv) {
  return play({argv + 1, argv + argc});
}
