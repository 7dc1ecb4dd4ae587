#include "core/distributed/job_token.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::string_view kWhere = "The job's token";

[[noreturn]] void fail_file(const std::filesystem::path& file, const std::string& problem) {
  fail<ConfigError>(kWhere, "the file ", file, " ", problem);
}

class File {
 public:
  explicit File(const std::filesystem::path& path)
      // Not to wait for the other end of a pipe.
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

/// On the open file, so that it cannot be exchanged in between.
void check_file(const std::filesystem::path& path, int fd) {
  struct stat status = {};
  if (fd < 0 || ::fstat(fd, &status) != 0)
    fail_file(path, "cannot be read: " + std::generic_category().message(errno) + ".");
  if (!S_ISREG(status.st_mode)) fail_file(path, "is no regular file.");
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    fail_file(path,
              "can be read or written by others than its owner. Run: chmod 600 " + path.string());
  }
}

}  // namespace

std::shared_ptr<const JobToken> JobToken::from_text(std::string_view text, std::string_view where) {
  // A thread may be in here while the process ends, so OpenSSL is not to clean up at the exit.
  ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, nullptr);
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  if (text.size() >= kFewestBytes && text.size() <= kMostBytes)
    return std::shared_ptr<const JobToken>(new JobToken(text));
  fail<ConfigError>(kWhere,
                    where,
                    " must have from ",
                    kFewestBytes,
                    " to ",
                    kMostBytes,
                    " bytes, got ",
                    text.size() > kMostBytes ? std::string("more") : std::to_string(text.size()),
                    ". A good one: openssl rand -hex 32.");
}

std::shared_ptr<const JobToken> JobToken::from_file(const std::filesystem::path& path) {
  const File file(path);
  check_file(path, file.fd());
  // With room for newlines, and one more to see that there is too much.
  std::string text(kMostBytes + 3, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const auto got = ::read(file.fd(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_file(path, "cannot be read: " + std::generic_category().message(errno) + ".");
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  const auto clean = [&] { OPENSSL_cleanse(text.data(), text.size()); };
  try {
    auto token = from_text(std::string_view(text).substr(0, size), "the file " + path.string());
    clean();
    return token;
  } catch (...) {
    clean();
    throw;
  }
}

std::shared_ptr<const JobToken> JobToken::find(const VariableLookup& variable) {
  if (const auto file = variable("FULMEN_TOKEN_FILE").value_or(""); !file.empty())
    return from_file(file);
  if (const auto text = variable("FULMEN_TOKEN").value_or(""); !text.empty())
    return from_text(text, "FULMEN_TOKEN");
  return nullptr;
}

JobToken::~JobToken() {
  OPENSSL_cleanse(secret_.data(), secret_.size());
}

JobToken::Answer JobToken::answer(std::span<const std::uint8_t> challenge) const {
  Answer result{};
  unsigned int size = 0;
  const auto* made = ::HMAC(::EVP_sha256(),
                            secret_.data(),
                            static_cast<int>(secret_.size()),
                            challenge.data(),
                            challenge.size(),
                            result.data(),
                            &size);
  if (made == nullptr || size != result.size())
    fail<DistributedError>(kWhere, "OpenSSL cannot make an HMAC-SHA256.");
  return result;
}

bool JobToken::accepts(std::span<const std::uint8_t> challenge, const Answer& given) const {
  const auto right = answer(challenge);
  return ::CRYPTO_memcmp(right.data(), given.data(), right.size()) == 0;
}

}  // namespace fulmen::detail
