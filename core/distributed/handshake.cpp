#include "core/distributed/handshake.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <span>
#include <utility>
#include <vector>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::array<std::uint8_t, 8> kMagic = {'F', 'u', 'l', 'm', 'e', 'n', '\r', '\n'};
constexpr std::uint8_t kVersion = 1;
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kHasTokenAt = 9;
constexpr std::size_t kServiceAt = 10;
constexpr std::size_t kRandomAt = 16;
constexpr std::uint8_t kYes = 1;

using Hello = std::array<std::uint8_t, 48>;
using Verdict = std::array<std::uint8_t, 33>;  // Yes or no, then the server's proof.

struct Trouble {
  HandshakeOutcome outcome;
  const char* reason;
};
constexpr Trouble kNotFulmen = {
    HandshakeOutcome::kStranger,
    "the other side does not speak Fulmen's protocol. Another program has this port."};
constexpr Trouble kOtherService = {
    HandshakeOutcome::kStranger,
    "the other side of the connection is for something else. See whether the ports of the store "
    "and of fulmen-run were mixed up."};
constexpr Trouble kOtherVersion = {
    HandshakeOutcome::kVersion,
    "the other side is of another version of Fulmen. Use the same one on all hosts."};
constexpr Trouble kOtherHasNone = {
    HandshakeOutcome::kTokenMissing,
    "this side has a token and the other has none. Set FULMEN_TOKEN_FILE (or FULMEN_TOKEN) to the "
    "same token on all hosts."};
constexpr Trouble kThisHasNone = {
    HandshakeOutcome::kTokenMissing,
    "the other side asks for the job's token and this one has none. Set FULMEN_TOKEN_FILE (or "
    "FULMEN_TOKEN) to the same token on all hosts."};
constexpr Trouble kOtherToken = {
    HandshakeOutcome::kTokenWrong,
    "the other side has another token. FULMEN_TOKEN_FILE (or FULMEN_TOKEN) must hold the same "
    "token on all hosts; it may also be the port of another job."};

/// One handshake under way; its handlers keep it alive.
class Handshake : public std::enable_shared_from_this<Handshake> {
 public:
  Handshake(HandshakeSide side,
            tcp::socket socket,
            HandshakeOptions options,
            HandshakeHandler handler)
      : side_(side),
        socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        options_(std::move(options)),
        then_(std::move(handler)) {}

  void start() {
    timer_.expires_after(options_.time_limit);
    timer_.async_wait([self = shared_from_this()](const error_code& error) {
      if (error || self->ended_) return;
      self->end(HandshakeOutcome::kTimedOut, "the other side did not answer in time.");
    });
    asio::post(socket_.get_executor(), [self = shared_from_this()] {
      if (!self->make_own_hello())
        return self->end(HandshakeOutcome::kClosed, "this system has no random numbers.");
      if (self->side_ == HandshakeSide::kServer) return self->read_hello(0);
      self->write(self->own_, [](Handshake& shake) { shake.read_hello(0); });
    });
  }

 private:
  using Step = void (*)(Handshake&);
  bool is_server() const { return side_ == HandshakeSide::kServer; }

  bool make_own_hello() {
    std::ranges::copy(kMagic, own_.begin());
    own_[kVersionAt] = kVersion;
    own_[kHasTokenAt] = options_.token != nullptr ? 1 : 0;
    own_[kServiceAt] = static_cast<std::uint8_t>(options_.service);
    return ::getentropy(own_.data() + kRandomAt, own_.size() - kRandomAt) == 0;
  }

  /// In pieces, so that a stranger is known by its first byte.
  void read_hello(std::size_t have) {
    socket_.async_read_some(
        asio::buffer(peer_.data() + have, peer_.size() - have),
        [self = shared_from_this(), have](const error_code& error, std::size_t got) {
          if (self->ended_) return;
          if (error) return self->end_early(error);
          const auto now = have + got;
          const auto known = static_cast<std::ptrdiff_t>(std::min(now, kMagic.size()));
          if (!std::equal(self->peer_.begin(), self->peer_.begin() + known, kMagic.begin()))
            return self->end(kNotFulmen);
          if (now < self->peer_.size()) return self->read_hello(now);
          self->then([](Handshake& shake) { shake.check_hello(); })(error, now);
        });
  }

  const Trouble* find_trouble() const {
    if (peer_[kVersionAt] != kVersion) return &kOtherVersion;
    if (peer_[kServiceAt] != own_[kServiceAt]) return &kOtherService;
    if (peer_[kHasTokenAt] == own_[kHasTokenAt]) return nullptr;
    return options_.token == nullptr ? &kThisHasNone : &kOtherHasNone;
  }

  void check_hello() {
    trouble_ = find_trouble();
    if (is_server()) {  // Answers in any case, so that the client can say what is wrong.
      return write(own_, [](Handshake& shake) {
        if (shake.trouble_ != nullptr) return shake.end(*shake.trouble_);
        if (shake.options_.token == nullptr) return shake.finish();
        shake.read_proof();
      });
    }
    if (trouble_ != nullptr) return end(*trouble_);
    if (options_.token == nullptr) return finish();
    proof_ = options_.token->answer(challenge("client"));
    write(proof_, [](Handshake& shake) { shake.read_verdict(); });
  }

  /// What is proved on the token by the side of this name.
  std::vector<std::uint8_t> challenge(std::string_view side) const {
    const auto& client = is_server() ? peer_ : own_;
    const auto& server = is_server() ? own_ : peer_;
    std::vector<std::uint8_t> text(side.begin(), side.end());
    text.insert(text.end(), client.begin(), client.end());
    text.insert(text.end(), server.begin(), server.end());
    return text;
  }

  void read_proof() {
    read(proof_, [](Handshake& shake) {
      const auto& token = *shake.options_.token;
      shake.verdict_ = {};
      if (!token.accepts(shake.challenge("client"), shake.proof_))
        return shake.write(shake.verdict_, [](Handshake& refused) { refused.end(kOtherToken); });
      shake.verdict_[0] = kYes;
      std::ranges::copy(token.answer(shake.challenge("server")), shake.verdict_.begin() + 1);
      shake.write(shake.verdict_, [](Handshake& accepted) { accepted.finish(); });
    });
  }

  void read_verdict() {
    read(verdict_, [](Handshake& shake) {
      std::copy(shake.verdict_.begin() + 1, shake.verdict_.end(), shake.proof_.begin());
      const bool right = shake.options_.token->accepts(shake.challenge("server"), shake.proof_);
      if (shake.verdict_[0] == kYes && right) return shake.finish();
      shake.end(kOtherToken);
    });
  }

  template <class Buffer>
  void read(Buffer& buffer, Step step) {
    asio::async_read(socket_, asio::buffer(buffer), then(step));
  }
  template <class Buffer>
  void write(const Buffer& buffer, Step step) {
    asio::async_write(socket_, asio::buffer(buffer), then(step));
  }
  std::function<void(const error_code&, std::size_t)> then(Step step) {
    return [self = shared_from_this(), step](const error_code& error, std::size_t) {
      if (self->ended_) return;
      if (error) return self->end(error);
      try {
        step(*self);
      } catch (const Error& failure) {  // Of OpenSSL.
        self->end(HandshakeOutcome::kClosed, failure.what());
      }
    };
  }

  void end(const error_code& error) {
    end(HandshakeOutcome::kClosed, "the connection ended: " + error.message() + ".");
  }
  void end_early(const error_code& error) {
    end(HandshakeOutcome::kClosed,
        "the other side ended the connection (" + error.message() +
            "). It may be no store of Fulmen: either all ranks have a token, or none.");
  }
  void end(const Trouble& trouble) { end(trouble.outcome, trouble.reason); }
  void end(HandshakeOutcome outcome, std::string reason) {
    error_code ignored;
    socket_.close(ignored);
    hand_over({.outcome = outcome, .reason = std::move(reason)});
  }
  void finish() { hand_over({.outcome = HandshakeOutcome::kDone}); }
  void hand_over(HandshakeResult result) {
    ended_ = true;
    timer_.cancel();
    std::exchange(then_, nullptr)(std::move(result), std::move(socket_));
  }

  HandshakeSide side_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  HandshakeOptions options_;
  HandshakeHandler then_;
  bool ended_ = false;
  Hello own_ = {};
  Hello peer_ = {};
  const Trouble* trouble_ = nullptr;
  JobToken::Answer proof_ = {};
  Verdict verdict_ = {};
};

}  // namespace

void async_handshake(HandshakeSide side,
                     tcp::socket socket,
                     HandshakeOptions options,
                     HandshakeHandler then) {
  std::make_shared<Handshake>(side, std::move(socket), std::move(options), std::move(then))
      ->start();
}

void check_may_listen(const std::string& where,
                      const asio::ip::address& address,
                      const JobToken* token) {
  const bool mapped = address.is_v6() && address.to_v6().is_v4_mapped();
  const bool loopback =
      mapped ? asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback()
             : address.is_loopback();
  if (loopback || token != nullptr) return;
  fail<ConfigError>("The job",
                    where,
                    " would be served to everybody who reaches this host, as no token is set. ",
                    kTokenRemedy);
}

}  // namespace fulmen::detail
