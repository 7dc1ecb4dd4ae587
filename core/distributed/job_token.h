#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fulmen/core/distributed/environment.h"

namespace fulmen::detail {

/// The secret of a job. Who knows it may join the job and use its store. It is never sent and never
/// printed: there is no way to get it out of this object, only answers made with it. Immutable, so
/// threads can share it. Needs OpenSSL::Crypto, no torch.
class JobToken {
 public:
  static constexpr std::size_t kFewestBytes = 16;
  static constexpr std::size_t kMostBytes = 4096;
  using Answer = std::array<std::uint8_t, 32>;

  /// Without the newlines at its end. Throws ConfigError unless 16 to 4096 bytes are left; `where`
  /// names the source in the message.
  static std::shared_ptr<const JobToken> from_text(std::string_view text, std::string_view where);
  /// Throws ConfigError if the file is missing, no regular file, readable or writable by others
  /// than its owner, or its contents are no token.
  static std::shared_ptr<const JobToken> from_file(const std::filesystem::path& file);
  /// From the file that FULMEN_TOKEN_FILE names, else from FULMEN_TOKEN. Null if neither is set; an
  /// empty variable counts as one that is not set.
  static std::shared_ptr<const JobToken> find(const VariableLookup& variable);

  ~JobToken();
  JobToken(const JobToken&) = delete;
  JobToken& operator=(const JobToken&) = delete;

  /// HMAC-SHA256 of the challenge.
  Answer answer(std::span<const std::uint8_t> challenge) const;
  /// Whether the answer is right, in a time that does not depend on where it is wrong.
  bool accepts(std::span<const std::uint8_t> challenge, const Answer& answer) const;

 private:
  explicit JobToken(std::string_view secret) : secret_(secret) {}
  std::string secret_;
};

/// What to do about a token that is missing, for messages: one sentence.
inline constexpr std::string_view kTokenRemedy =
    "Set FULMEN_TOKEN_FILE on all hosts to a file with the same secret of at least 16 bytes that "
    "only its owner can read, for example made by: (umask 077; openssl rand -hex 32 > token).";

}  // namespace fulmen::detail
