#include "tools/run/run_options.h"

#include <sched.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <ostream>
#include <random>
#include <string_view>
#include <thread>

#include "fulmen/core/support/error.h"
#include "fulmen/version.h"

namespace fulmen::detail {
namespace {

constexpr int kMostNodes = 4096;
constexpr int kMostRanks = 1024;
constexpr std::uint16_t kUsualPort = 29400;  // torchrun's too.

/// The values as they were given; empty: not given.
struct Texts {
  std::string nnodes, nproc, node_rank, endpoint, backend, conf, id, max_restarts;
  std::string master_addr, master_port, log_dir, redirects, tee, token_file, monitor, shutdown;
  bool is_standalone = false;
  bool no_python = false;
};

[[noreturn]] void fail_value(const std::string& flag,
                             const std::string& value,
                             const std::string& remedy) {
  fail<ConfigError>(flag, "got \"", value, "\"; ", remedy);
}

std::optional<long> to_number(std::string_view text) {
  long value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || rest != text.data() + text.size()) return std::nullopt;
  return value;
}

int parse_number(const std::string& flag, const std::string& text, long least, long most) {
  const auto value = to_number(text);
  if (value && *value >= least && *value <= most) return static_cast<int>(*value);
  fail_value(flag,
             text,
             "give a number from " + std::to_string(least) + " to " + std::to_string(most) + ".");
}

std::chrono::milliseconds parse_seconds(const std::string& flag, const std::string& text) {
  std::size_t used = 0;
  double seconds = 0;
  try {
    seconds = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || !(seconds >= 0.01 && seconds <= 1e6))
    fail_value(flag, text, "give seconds from 0.01 to 1000000.");
  return std::chrono::milliseconds(static_cast<long>(seconds * 1000));
}

void parse_nodes(const std::string& text, RunOptions& options) {
  const auto colon = text.find(':');
  const auto least = to_number(text.substr(0, colon));
  const auto most = colon == std::string::npos ? least : to_number(text.substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least || *most > kMostNodes) {
    fail_value("--nnodes",
               text,
               "give N or MIN:MAX with 1 <= MIN <= MAX <= " + std::to_string(kMostNodes) +
                   ", for instance 2 or 1:4.");
  }
  options.min_nodes = static_cast<int>(*least);
  options.max_nodes = static_cast<int>(*most);
}

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

int visible_gpus() {
  if (const char* given = std::getenv("CUDA_VISIBLE_DEVICES")) {
    const std::string_view text(given);
    if (text.empty() || text == "-1") return 0;
    return static_cast<int>(std::count(text.begin(), text.end(), ',')) + 1;
  }
  int count = 0;
  while (::access(("/dev/nvidia" + std::to_string(count)).c_str(), F_OK) == 0) ++count;
  return count;
}

int parse_ranks(const std::string& text) {
  if (text == "cpu") return usable_cores();
  const int gpus = text == "gpu" || text == "auto" ? visible_gpus() : 0;
  if (text == "auto") return gpus > 0 ? gpus : usable_cores();
  if (text == "gpu") {
    if (gpus > 0) return gpus;
    fail_value("--nproc-per-node", text, "no GPU is visible here; give a number or cpu.");
  }
  if (const auto value = to_number(text); value && *value >= 1 && *value <= kMostRanks)
    return static_cast<int>(*value);
  fail_value("--nproc-per-node",
             text,
             "give a number from 1 to " + std::to_string(kMostRanks) + ", cpu, gpu or auto.");
}

/// 0 to 3 as torchrun has it: 1 standard output, 2 standard error.
Streams parse_streams(const std::string& flag, const std::string& text) {
  const auto value = to_number(text);
  if (!value || *value < 0 || *value > 3) {
    fail_value(
        flag,
        text,
        "give 0 (none), 1 (standard output), 2 (standard error) or 3 (both), for all ranks.");
  }
  return {.output = (*value & 1) != 0, .errors = (*value & 2) != 0};
}

void parse_conf(const std::string& text, RunOptions& options) {
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto equals = part.find('=');
    const auto key = part.substr(0, equals);
    const auto value = equals == std::string::npos ? "" : part.substr(equals + 1);
    const auto flag = "--rdzv-conf " + key;
    if (key == "join_timeout" || key == "timeout") {
      options.join_timeout = parse_seconds(flag, value);
    } else if (key == "last_call_timeout") {
      options.last_call = parse_seconds(flag, value);
    } else if (key == "keep_alive_interval") {
      options.beat.interval = parse_seconds(flag, value);
    } else if (key == "keep_alive_max_attempt") {
      options.beat.attempts = parse_number(flag, value, 2, 1000);
    } else if (key != "rank" && key != "is_host" && key != "read_timeout" &&
               key != "close_timeout" && key != "use_libuv") {  // torchrun's; nothing to do here.
      fail_value("--rdzv-conf",
                 part,
                 "give key=value,... with join_timeout, last_call_timeout, keep_alive_interval or "
                 "keep_alive_max_attempt.");
    }
  }
}

std::string random_id() {
  std::random_device source;
  std::ostringstream text;
  text << std::hex << source() << source();
  return text.str();
}

void choose_endpoint(const Texts& given, RunOptions& options) {
  if (!given.endpoint.empty()) {
    options.endpoint = parse_endpoint("--rdzv-endpoint", given.endpoint);
  } else if (!given.master_addr.empty()) {
    options.endpoint.host = given.master_addr;
    options.endpoint.port = 29500;
    if (!given.master_port.empty()) {
      options.endpoint.port =
          static_cast<std::uint16_t>(parse_number("--master-port", given.master_port, 1, 65535));
    }
  }
  if (given.is_standalone) {
    if (options.max_nodes > 1) {
      fail<ConfigError>("--standalone",
                        "is for one node, but --nnodes is ",
                        given.nnodes,
                        ". Leave one of both out; several nodes need --rdzv-endpoint HOST:PORT.");
    }
  }
  if (options.max_nodes == 1) {  // Nobody else needs to know the port, so jobs never share one.
    options.endpoint = {.host = "127.0.0.1"};
    return;
  }
  if (options.endpoint.host.empty()) {
    fail<ConfigError>("--rdzv-endpoint",
                      "is missing, but --nnodes is ",
                      given.nnodes,
                      ". Give the host of one of the nodes and a free port there, the same on all "
                      "nodes: --rdzv-endpoint HOST:PORT.");
  }
  if (options.endpoint.port == 0) {
    fail_value("--rdzv-endpoint",
               given.endpoint,
               "several nodes need a port that all of them know, from 1 to 65535.");
  }
}

void choose_streams(const Texts& given, RunOptions& options) {
  if (!given.log_dir.empty()) {
    options.log_dir = std::filesystem::absolute(given.log_dir);
    options.to_files = {.output = true, .errors = true};
  }
  for (const auto& [flag, text] :
       {std::pair<std::string, std::string>("--redirects", given.redirects),
        std::pair<std::string, std::string>("--tee", given.tee)}) {
    if (text.empty()) continue;
    const auto streams = parse_streams(flag, text);
    if (!streams.output && !streams.errors) continue;
    if (given.log_dir.empty())
      fail_value(flag, text, "there is no folder for the files: give --log-dir too.");
    if (flag == "--redirects") {
      if (streams.output) options.to_terminal.output = false;
      if (streams.errors) options.to_terminal.errors = false;
    } else {
      if (streams.output) options.to_terminal.output = true;
      if (streams.errors) options.to_terminal.errors = true;
    }
  }
}

std::string find_in_path(const std::string& program) {
  const auto runs = [](const std::filesystem::path& file) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(file, ignored) && ::access(file.c_str(), X_OK) == 0;
  };
  if (program.find('/') != std::string::npos) return runs(program) ? program : "";
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const auto file = std::filesystem::path(folder.empty() ? "." : folder) / program;
    if (runs(file)) return file.string();
  }
  return "";
}

void choose_program(std::vector<std::string> rest, RunOptions& options) {
  const bool separated = !rest.empty() && rest.front() == "--";
  if (separated) rest.erase(rest.begin());
  if (rest.empty()) {
    fail<ConfigError>("The program",
                      "is missing: fulmen-run [flags] PROGRAM [ARGUMENTS...]. See --help.");
  }
  if (!separated && rest.front().starts_with("-")) {
    fail<ConfigError>(rest.front().substr(0, rest.front().find('=')),
                      "is not a flag of fulmen-run. Flags come before the program; see --help for "
                      "them.");
  }
  const auto file = find_in_path(rest.front());
  if (file.empty()) {
    fail<ConfigError>(
        "The program",
        "\"",
        rest.front(),
        "\" is not an executable file, here or in PATH. Give its path; a script needs "
        "its interpreter: fulmen-run [flags] python3 script.py.");
  }
  rest.front() = file;
  options.command = std::move(rest);
}

/// Both spellings, and torchrun's variable for it.
void add(CLI::App& app,
         const std::string& name,
         std::string& value,
         const std::string& type,
         const std::string& help,
         const std::string& short_name = "") {
  auto underscored = name;
  std::replace(underscored.begin(), underscored.end(), '-', '_');
  auto variable = "PET_" + underscored;
  std::transform(variable.begin(), variable.end(), variable.begin(), [](unsigned char c) {
    return static_cast<char>(std::toupper(c));
  });
  const auto names = short_name + "--" + name + (underscored == name ? "" : ",--" + underscored);
  app.add_option(names, value, help)->type_name(type)->envname(variable);
}

void add_all(CLI::App& app, Texts& given) {
  const auto option = [&app](auto&&... parts) { add(app, parts...); };
  option("nnodes", given.nnodes, "N or MIN:MAX", "Nodes, or the range of a world that changes (1)");
  option("nproc-per-node", given.nproc, "N", "Ranks of this node; or cpu, gpu, auto (1)");
  option("node-rank", given.node_rank, "N", "Number of this node; 0 serves the endpoint");
  option("rdzv-endpoint", given.endpoint, "HOST[:PORT]", "Where the nodes meet (port 29400)");
  option("rdzv-id", given.id, "TEXT", "Name of the job, the same on all nodes");
  option("rdzv-backend", given.backend, "TEXT", "Accepted: c10d, static");
  option("rdzv-conf",
         given.conf,
         "KEY=VALUE,...",
         "join_timeout=600, last_call_timeout=3, keep_alive_interval=1 (seconds), "
         "keep_alive_max_attempt=5");
  option("max-restarts", given.max_restarts, "N", "Restarts of all ranks after a failure (0)");
  option("monitor-interval", given.monitor, "SECONDS", "Accepted: ends of ranks are seen at once");
  option("master-addr", given.master_addr, "HOST", "Host of the endpoint, without --rdzv-endpoint");
  option("master-port", given.master_port, "PORT", "Its port (29500)");
  option("log-dir", given.log_dir, "FOLDER", "For a file of each rank: round_0/rank_0.log");
  option("redirects",
         given.redirects,
         "0-3",
         "To the file and not to the terminal: 1 output, 2 errors, 3 both",
         "-r,");
  option("tee", given.tee, "0-3", "To both, as is the default with --log-dir", "-t,");
  option("token-file",
         given.token_file,
         "FILE",
         "The job's token; else FULMEN_TOKEN_FILE, FULMEN_TOKEN");
  option("shutdown-timeout", given.shutdown, "SECONDS", "From a signal to SIGKILL (30)");
  app.add_flag("--standalone", given.is_standalone, "One node, at a free port of this host");
  app.add_flag(
      "--no-python,--no_python", given.no_python, "Accepted: the program is always an executable");
}

void fill(const Texts& given, RunOptions& options) {
  if (!given.nnodes.empty()) parse_nodes(given.nnodes, options);
  if (!given.nproc.empty()) options.ranks = parse_ranks(given.nproc);
  if (!given.node_rank.empty())
    options.node_rank = parse_number("--node-rank", given.node_rank, 0, options.max_nodes - 1);
  if (!given.max_restarts.empty())
    options.max_restarts = parse_number("--max-restarts", given.max_restarts, 0, 1'000'000);
  if (!given.backend.empty() && given.backend != "c10d" && given.backend != "static")
    fail_value("--rdzv-backend", given.backend, "there is c10d, which is also the default.");
  if (!given.conf.empty()) parse_conf(given.conf, options);
  if (!given.monitor.empty()) parse_seconds("--monitor-interval", given.monitor);
  if (!given.shutdown.empty())
    options.shutdown_timeout = parse_seconds("--shutdown-timeout", given.shutdown);
  if (given.id.size() > 200) fail_value("--rdzv-id", given.id, "give at most 200 characters.");
  if (!given.id.empty()) options.job_id = given.id;
  if (given.is_standalone) options.job_id = random_id();
  if (!given.token_file.empty()) options.token_file = std::filesystem::absolute(given.token_file);
  choose_endpoint(given, options);
  choose_streams(given, options);
}

}  // namespace

std::string Endpoint::text() const {
  const bool is_ipv6 = host.find(':') != std::string::npos;
  return (is_ipv6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Endpoint parse_endpoint(const std::string& flag, const std::string& text) {
  const std::string remedy = "give HOST, HOST:PORT or [IPV6]:PORT with a port from 1 to 65535.";
  Endpoint endpoint{.host = text, .port = kUsualPort};
  std::string port;
  if (text.starts_with("[")) {
    const auto close = text.find(']');
    if (close == std::string::npos) fail_value(flag, text, remedy);
    endpoint.host = text.substr(1, close - 1);
    const auto rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') fail_value(flag, text, remedy);
    if (!rest.empty() && rest.size() == 1) fail_value(flag, text, remedy);
    if (!rest.empty()) port = rest.substr(1);
  } else if (const auto colon = text.find(':');
             colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
    endpoint.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) fail_value(flag, text, remedy);
  }
  const bool has_space = endpoint.host.find_first_of(" \t/") != std::string::npos;
  if (endpoint.host.empty() || has_space) fail_value(flag, text, remedy);
  if (port.empty()) return endpoint;
  const auto number = to_number(port);
  if (!number || *number < 0 || *number > 65535) fail_value(flag, text, remedy);
  endpoint.port = static_cast<std::uint16_t>(*number);
  return endpoint;
}

std::optional<RunOptions> parse_command_line(int argc, const char* const* argv, std::ostream& out) {
  CLI::App app("Starts the ranks of a program on one node or, started once on each, on several.",
               "fulmen-run");
  app.footer("Usage: fulmen-run [flags] PROGRAM [ARGUMENTS...]");
  app.set_version_flag("--version", std::string("fulmen-run ") + FULMEN_VERSION);
  app.prefix_command();
  Texts given;
  add_all(app, given);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    app.exit(help, out, out);
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    fail<ConfigError>("The command line", error.what(), ". See --help.");
  }
  RunOptions options;
  fill(given, options);
  choose_program(app.remaining(), options);
  return options;
}

}  // namespace fulmen::detail
