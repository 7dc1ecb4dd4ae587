#include <sys/random.h>

#include <array>
#include <cstdint>

#include "fulmen/core/support/error.h"
#include "tools/run/run_options.h"

namespace fulmen::detail {
namespace {

std::string random_secret() {
  std::array<std::uint8_t, 32> bytes{};
  if (::getentropy(bytes.data(), bytes.size()) != 0)
    fail<DistributedError>("The job's token", "this system has no random numbers.");
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const auto byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

RunToken find_token(const RunOptions& options) {
  if (!options.token_file.empty()) {
    return {
        .token = JobToken::from_file(options.token_file),
        .variables = {{"FULMEN_TOKEN_FILE", options.token_file.string()}, {"FULMEN_TOKEN", ""}}};
  }
  if (auto token = JobToken::find(process_environment())) return {.token = std::move(token)};
  if (options.max_nodes > 1) {
    fail<ConfigError>("--token-file",
                      "is missing, and neither FULMEN_TOKEN_FILE nor FULMEN_TOKEN is set: several ",
                      "nodes need a token, so that nobody else can join or disturb the job. ",
                      kTokenRemedy);
  }
  // Other users of this host are not to reach the store.
  const auto secret = random_secret();
  return {.token = JobToken::from_text(secret, "a new token"),
          .variables = {{"FULMEN_TOKEN", secret}}};
}

}  // namespace fulmen::detail
