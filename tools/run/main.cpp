#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <exception>
#include <iostream>

#include "fulmen/core/support/error.h"
#include "tools/run/agent.h"
#include "tools/run/run_options.h"
#include "tools/run/terminal.h"

namespace fulmen::detail {
namespace {

extern "C" void fulmen_run_ignore(int) {}

int run(int argc, char** argv) {
  constexpr int kUsageError = 2;
  try {
    const auto options = parse_command_line(argc, argv, std::cout);
    if (!options) return 0;
    const auto token = find_token(*options);
    // Not SIG_IGN, which the ranks would have too.
    ::signal(SIGPIPE, fulmen_run_ignore);
    Terminal terminal;
    boost::asio::io_context context(1);
    Agent agent(context, terminal, *options, token);
    return agent.run();
  } catch (const ConfigError& error) {
    std::cerr << "fulmen-run: error: " << error.what() << std::endl;
    return kUsageError;
  } catch (const std::exception& error) {
    std::cerr << "fulmen-run: error: " << error.what() << std::endl;
    return 1;
  }
}

}  // namespace
}  // namespace fulmen::detail

int main(int argc, char** argv) {
  return fulmen::detail::run(argc, argv);
}
