#include "tests/ranks/network.h"

#include <unistd.h>

#include <sstream>

namespace fulmen {
namespace {

std::vector<std::string> words_of(const std::string& command) {
  std::istringstream stream(command);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

}  // namespace

TwoNodes::TwoNodes() : prefix_("fulmen-" + std::to_string(::getpid()) + "-") {
  if (find_program("ip").empty()) {
    problem_ = "the program ip (Debian package iproute2) is not there";
    return;
  }
  const auto link = "link" + std::to_string(::getpid());  // At most 15 letters.
  for (int node = 0; node < 2; ++node) run("ip netns add " + name(node));
  run("ip link add " + link + " netns " + name(0) + " type veth peer name " + link + " netns " +
      name(1));
  for (int node = 0; node < 2; ++node) {
    const auto here = "ip -n " + name(node) + " ";
    const auto number = std::to_string(node + 1);
    run(here + "link set " + link + " name eth0");
    run(here + "address add 10.77.0." + number + "/24 dev eth0");
    run(here + "-6 address add fd77::" + number + "/64 dev eth0 nodad");
    run(here + "link set lo up");
    run(here + "link set eth0 up");
  }
}

TwoNodes::~TwoNodes() {
  for (int node = 0; node < 2; ++node)
    run_program({.arguments = words_of("ip netns del " + name(node))});
}

std::vector<std::string> TwoNodes::on(int node, const std::vector<std::string>& command) const {
  auto words = words_of("ip netns exec " + name(node));
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

void TwoNodes::cut() const {
  run_program({.arguments = words_of("ip -n " + name(1) + " link set eth0 down")});
}

void TwoNodes::mend() const {
  run_program({.arguments = words_of("ip -n " + name(1) + " link set eth0 up")});
  // Addresses of the sixth version go with the link.
  run_program(
      {.arguments = words_of("ip -n " + name(1) + " -6 address add fd77::2/64 dev eth0 nodad")});
}

bool TwoNodes::slow_down() const {
  if (find_program("tc").empty()) return false;
  for (const std::string how : {"netem delay 10ms", "tbf rate 100kbit burst 2kb latency 2s"}) {
    const auto command = "tc -n " + name(0) + " qdisc add dev eth0 root " + how;
    if (run_program({.arguments = words_of(command)}).exit_code == 0) return true;
  }
  return false;
}

std::string TwoNodes::name(int node) const {
  return prefix_ + std::to_string(node);
}

void TwoNodes::run(const std::string& command) {
  if (!problem_.empty()) return;
  const auto result = run_program({.arguments = words_of(command)});
  if (result.exit_code != 0) problem_ = "\"" + command + "\" failed: " + result.output;
}

}  // namespace fulmen
