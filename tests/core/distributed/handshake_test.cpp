#include "core/distributed/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <thread>

#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using fulmen::testing::error_text;
using fulmen::testing::expect_parts;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Outcome = HandshakeOutcome;

constexpr std::size_t kHello = 48;
constexpr std::size_t kProof = 32;
constexpr std::size_t kVerdict = 33;
/// Longer than any test takes: what ends earlier was not ended by the limit.
constexpr milliseconds kLong = std::chrono::seconds(8);
constexpr milliseconds kSoon = std::chrono::seconds(4);

const std::string kSecret = "a secret of this test";

std::shared_ptr<const JobToken> token(const std::string& text = kSecret) {
  return JobToken::from_text(text, "test");
}

/// Two ends of a connection, each of which may shake hands or be an attacker's.
class HandshakeTest : public ::testing::Test {
 protected:
  HandshakeTest() {
    tcp::acceptor acceptor(context_, {asio::ip::address_v4::loopback(), 0});
    client_.connect(acceptor.local_endpoint());
    acceptor.accept(server_);
  }

  struct End {
    std::optional<HandshakeResult> result;
    tcp::socket socket;
  };

  void shake(HandshakeSide side, HandshakeOptions options) {
    auto& end = side == HandshakeSide::kServer ? server_end_ : client_end_;
    auto& socket = side == HandshakeSide::kServer ? server_ : client_;
    async_handshake(side,
                    std::move(socket),
                    std::move(options),
                    [&end](HandshakeResult result, tcp::socket back) {
                      EXPECT_FALSE(end.result.has_value()) << "called twice";
                      end.result = std::move(result);
                      end.socket = std::move(back);
                    });
  }
  void run_both(const HandshakeOptions& server, const HandshakeOptions& client) {
    shake(HandshakeSide::kServer, server);
    shake(HandshakeSide::kClient, client);
    run();
  }
  /// Until both are done.
  void run() {
    context_.restart();
    context_.run_for(kLong);
  }
  /// While this thread plays the attacker with blocking calls.
  std::thread run_in_background() {
    return std::thread([this] { run(); });
  }
  void expect(Outcome server, Outcome client) {
    ASSERT_TRUE(server_end_.result && client_end_.result);
    EXPECT_EQ(server_end_.result.value().outcome, server) << server_end_.result.value().reason;
    EXPECT_EQ(client_end_.result.value().outcome, client) << client_end_.result.value().reason;
  }

  template <std::size_t size>
  static std::array<std::uint8_t, size> receive(tcp::socket& socket) {
    std::array<std::uint8_t, size> bytes{};
    asio::read(socket, asio::buffer(bytes));
    return bytes;
  }
  template <class Bytes>
  static void send(tcp::socket& socket, const Bytes& bytes) {
    asio::write(socket, asio::buffer(bytes));
  }
  /// All that still comes until the connection ends.
  static std::string receive_all(tcp::socket& socket) {
    std::string text;
    error_code error;
    asio::read(socket, asio::dynamic_buffer(text), error);
    return text;
  }

  asio::io_context context_;
  tcp::socket client_{context_};
  tcp::socket server_{context_};
  End client_end_{.result = {}, .socket = tcp::socket(context_)};
  End server_end_{.result = {}, .socket = tcp::socket(context_)};
};

TEST_F(HandshakeTest, IsDoneWithOneToken) {
  run_both({.token = token()}, {.token = token()});
  expect(Outcome::kDone, Outcome::kDone);
  send(client_end_.socket, std::string("first"));
  EXPECT_EQ(receive<5>(server_end_.socket), (std::array<std::uint8_t, 5>{'f', 'i', 'r', 's', 't'}));
}

TEST_F(HandshakeTest, IsDoneWithoutTokens) {
  run_both({}, {});
  expect(Outcome::kDone, Outcome::kDone);
  send(server_end_.socket, std::string("x"));
  EXPECT_EQ(receive<1>(client_end_.socket)[0], 'x');
}

TEST_F(HandshakeTest, FailsWithTwoTokensAndNamesTheRemedy) {
  run_both({.token = token()}, {.token = token(kSecret + "!")});
  expect(Outcome::kTokenWrong, Outcome::kTokenWrong);
  expect_parts(client_end_.result.value().reason,
               {"another token", "FULMEN_TOKEN_FILE", "same token"});
  EXPECT_TRUE(client_end_.result.value().is_final());
  EXPECT_FALSE(client_end_.socket.is_open());
  EXPECT_FALSE(server_end_.socket.is_open());
}

TEST_F(HandshakeTest, FailsIfOnlyTheServerHasAToken) {
  run_both({.token = token()}, {});
  expect(Outcome::kTokenMissing, Outcome::kTokenMissing);
  expect_parts(client_end_.result.value().reason, {"this one has none", "FULMEN_TOKEN_FILE"});
}

TEST_F(HandshakeTest, FailsIfOnlyTheClientHasAToken) {
  run_both({}, {.token = token()});
  expect(Outcome::kTokenMissing, Outcome::kTokenMissing);
  expect_parts(client_end_.result.value().reason, {"the other has none", "FULMEN_TOKEN_FILE"});
}

TEST_F(HandshakeTest, FailsBetweenServices) {
  run_both({.token = token(), .service = HandshakeService::kStore},
           {.token = token(), .service = HandshakeService::kAgents});
  expect(Outcome::kStranger, Outcome::kStranger);
}

TEST_F(HandshakeTest, NeverSendsTheTokenNorAnythingBeforeTheClientHasProved) {
  shake(HandshakeSide::kServer, {.token = token()});
  auto thread = run_in_background();
  tcp::acceptor acceptor(context_, {asio::ip::address_v4::loopback(), 0});
  std::string wire;
  // A client's hello with the token flag; the server answers 48 bytes of hello and no proof.
  std::array<std::uint8_t, kHello> hello{'F', 'u', 'l', 'm', 'e', 'n', '\r', '\n', 1, 1, 1};
  send(client_, hello);
  const auto answer = receive<kHello>(client_);
  send(client_, std::array<std::uint8_t, kProof>{});
  wire.assign(answer.begin(), answer.end());
  const auto rest = receive_all(client_);
  EXPECT_EQ(rest, std::string(kVerdict, '\0'));
  EXPECT_EQ((wire + rest).find(kSecret), std::string::npos);
  thread.join();
  EXPECT_EQ(server_end_.result.value().outcome, Outcome::kTokenWrong);
}

/// A false server sends the client's own hello and proof back to it.
TEST_F(HandshakeTest, IsNotDeceivedByItsOwnWordsSentBack) {
  shake(HandshakeSide::kClient, {.token = token()});
  auto thread = run_in_background();
  send(server_, receive<kHello>(server_));
  const auto proof = receive<kProof>(server_);
  std::array<std::uint8_t, kVerdict> verdict{1};
  std::ranges::copy(proof, verdict.begin() + 1);
  send(server_, verdict);
  thread.join();
  EXPECT_EQ(client_end_.result.value().outcome, Outcome::kTokenWrong);
}

TEST_F(HandshakeTest, IsNotDeceivedByAServerThatSaysYesWithoutProof) {
  shake(HandshakeSide::kClient, {.token = token()});
  auto thread = run_in_background();
  send(server_, receive<kHello>(server_));
  receive<kProof>(server_);
  send(server_, std::array<std::uint8_t, kVerdict>{1});
  thread.join();
  EXPECT_EQ(client_end_.result.value().outcome, Outcome::kTokenWrong);
}

/// What a client of the job once said is said again to its server.
TEST_F(HandshakeTest, IsNotDeceivedByARecordedClient) {
  shake(HandshakeSide::kClient, {.token = token()});
  auto thread = run_in_background();
  const auto hello = receive<kHello>(server_);
  send(server_, hello);
  const auto proof = receive<kProof>(server_);
  server_.close();
  thread.join();

  tcp::acceptor acceptor(context_, {asio::ip::address_v4::loopback(), 0});
  tcp::socket replayed(context_);
  replayed.connect(acceptor.local_endpoint());
  acceptor.accept(server_);
  shake(HandshakeSide::kServer, {.token = token()});
  thread = run_in_background();
  send(replayed, hello);
  receive<kHello>(replayed);
  send(replayed, proof);
  thread.join();
  EXPECT_EQ(server_end_.result.value().outcome, Outcome::kTokenWrong);
}

TEST_F(HandshakeTest, AsksForOtherRandomNumbersEachTime) {
  shake(HandshakeSide::kClient, {.token = token(), .time_limit = milliseconds(200)});
  run();
  const auto first = receive<kHello>(server_);
  client_end_.result.reset();
  tcp::acceptor acceptor(context_, {asio::ip::address_v4::loopback(), 0});
  client_ = tcp::socket(context_);
  client_.connect(acceptor.local_endpoint());
  tcp::socket other(context_);
  acceptor.accept(other);
  shake(HandshakeSide::kClient, {.token = token(), .time_limit = milliseconds(200)});
  run();
  EXPECT_NE(receive<kHello>(other), first);
}

TEST_F(HandshakeTest, DropsStrangersAtTheirFirstWordsAndTellsThemNothing) {
  const std::vector<std::string> greetings = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string("\xce\xf7\x85\x3c\x00", 5),  // Of c10d's store, or something like it.
      "\x16\x03\x01\x02",                      // TLS.
      "Fulmen?",
      "x"};
  for (const auto& greeting : greetings) {
    tcp::acceptor acceptor(context_, {asio::ip::address_v4::loopback(), 0});
    tcp::socket stranger(context_);
    stranger.connect(acceptor.local_endpoint());
    server_ = tcp::socket(context_);
    acceptor.accept(server_);
    server_end_.result.reset();
    shake(HandshakeSide::kServer, {.token = token(), .time_limit = kLong});
    send(stranger, greeting);
    const auto start = Clock::now();
    run();
    ASSERT_TRUE(server_end_.result.has_value());
    EXPECT_EQ(server_end_.result.value().outcome, Outcome::kStranger) << greeting;
    EXPECT_LT(Clock::now() - start, kSoon);
    EXPECT_EQ(receive_all(stranger), "");
  }
}

TEST_F(HandshakeTest, DropsTheSlowAtTheTimeLimitHoweverOftenTheySpeak) {
  constexpr milliseconds kLimit(300);
  shake(HandshakeSide::kServer, {.token = token(), .time_limit = kLimit});
  const auto start = Clock::now();
  auto thread = run_in_background();
  const std::string hello("Fulmen\r\n\x01\x01\x01", 11);
  error_code error;
  for (std::size_t i = 0; i < 250 && !error; ++i) {  // 10 s in all.
    asio::write(client_, asio::buffer(hello.data() + std::min(i, hello.size() - 1), 1), error);
    std::this_thread::sleep_for(milliseconds(40));
  }
  thread.join();
  EXPECT_EQ(server_end_.result.value().outcome, Outcome::kTimedOut);
  EXPECT_GE(Clock::now() - start, kLimit);
  EXPECT_LT(Clock::now() - start, kSoon);
}

TEST_F(HandshakeTest, TimesOutOnAServerThatIsSilent) {
  shake(HandshakeSide::kClient, {.token = token(), .time_limit = milliseconds(100)});
  run();
  EXPECT_EQ(client_end_.result.value().outcome, Outcome::kTimedOut);
  EXPECT_FALSE(client_end_.result.value().is_final());
}

TEST_F(HandshakeTest, SaysThatTheOtherSideClosedAndWhyItMayHave) {
  server_.close();
  shake(HandshakeSide::kClient, {.token = token()});
  run();
  EXPECT_EQ(client_end_.result.value().outcome, Outcome::kClosed);
  expect_parts(client_end_.result.value().reason, {"ended the connection", "token"});
}

TEST(Handshake, IsNeededToListenOnOtherThanLoopback) {
  const auto check = [](const char* address, const JobToken* given) {
    check_may_listen("HERE", asio::ip::make_address(address), given);
  };
  for (const auto* address : {"127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"})
    EXPECT_NO_THROW(check(address, nullptr)) << address;
  for (const auto* address : {"0.0.0.0", "::", "10.0.0.1", "fe80::1", "::ffff:10.0.0.1"}) {
    const auto text = error_text<ConfigError>([&] { check(address, nullptr); });
    expect_parts(text, {"HERE", "no token is set", "FULMEN_TOKEN_FILE"});
    EXPECT_NO_THROW(check(address, token().get()));
  }
}

}  // namespace
}  // namespace fulmen::detail
