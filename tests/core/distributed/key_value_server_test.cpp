#include "core/distributed/key_value_server.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <list>
#include <thread>

#include "core/distributed/handshake.h"
#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/core/distributed/store_client.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using fulmen::testing::error_text;
using fulmen::testing::expect_parts;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr seconds kFast(5);

/// Whether it comes to be so within a second.
template <class Condition>
bool soon(const Condition& condition) {
  for (int i = 0; i < 200 && !condition(); ++i) std::this_thread::sleep_for(milliseconds(5));
  return condition();
}

/// A connection on which anything can be said.
class Stranger {
 public:
  explicit Stranger(const KeyValueServer& server) {
    socket_.connect({asio::ip::address_v4::loopback(), server.port()});
  }
  /// Shows the token first.
  Stranger(const KeyValueServer& server, std::shared_ptr<const JobToken> token) : Stranger(server) {
    bool done = false;
    async_handshake(HandshakeSide::kClient,
                    std::move(socket_),
                    {.token = std::move(token)},
                    [&](const HandshakeResult& result, tcp::socket socket) {
                      done = result.done();
                      socket_ = std::move(socket);
                    });
    context_.run();
    EXPECT_TRUE(done);
  }

  void send(std::string_view text) {
    error_code ignored;
    asio::write(socket_, asio::buffer(text), ignored);
  }
  /// With a length before it.
  void send_message(const std::string& body) {
    const auto size = body.size();
    std::string length;
    for (int shift = 24; shift >= 0; shift -= 8) length += static_cast<char>(size >> shift & 0xff);
    send(length + body);
  }
  /// The body of the next message; empty if the connection ended.
  std::string receive() {
    std::array<std::uint8_t, kLengthBytes> length{};
    error_code error;
    asio::read(socket_, asio::buffer(length), error);
    if (error) return {};
    std::string body(decode_length(length.data()), '\0');
    asio::read(socket_, asio::buffer(body), error);
    return error ? "" : body;
  }
  bool is_dropped() {
    char byte = 0;
    error_code error;
    asio::read(socket_, asio::buffer(&byte, 1), error);
    return error == asio::error::eof || error == asio::error::connection_reset;
  }
  void close() { socket_.close(); }

 private:
  asio::io_context context_;
  tcp::socket socket_{context_};
};

std::string body_of(StoreMessageWriter message) {
  return std::move(message).take().substr(kLengthBytes);
}

std::string wait_for(const std::string& key) {
  StoreMessageWriter message(StoreRequest::kWait);
  message.number(60'000).texts({key});
  return body_of(std::move(message));
}

TEST(KeyValueServer, ServesNobodyBeyondLoopbackWithoutAToken) {
  for (const auto* host : {"", "0.0.0.0", "::"}) {
    const auto text = error_text<ConfigError>([&] { KeyValueServer({.host = host, .port = 0}); });
    expect_parts(text, {"no token is set", "FULMEN_TOKEN_FILE", "openssl rand"});
  }
  for (const auto* host : {"127.0.0.1", "localhost"}) {
    KeyValueServer server({.host = host});
    EXPECT_EQ(connect_to(server, nullptr, host)->add("n", 1), 1);
  }
  KeyValueServer open({.host = "", .token = test_token()});
  EXPECT_EQ(connect_to(open)->add("n", 1), 1);
}

TEST(KeyValueServer, ServesIpv6AndIpv4OnOnePort) {
  KeyValueServer server({.host = "", .token = test_token()});
  try {
    connect_to(server, test_token(), "::1")->set("six", std::string("6"));
  } catch (const DistributedError& error) {
    GTEST_SKIP() << "no IPv6 here: " << error.what();
  }
  EXPECT_EQ(connect_to(server, test_token(), "127.0.0.1")->get_to_str("six"), "6");
  KeyValueServer only({.host = "::1", .token = test_token()});
  const auto store = connect_to(only, test_token(), "::1");
  expect_parts(store->address(), {"[::1]:"});
  EXPECT_EQ(store->add("n", 2), 2);
}

TEST(KeyValueServer, NamesAnAddressWhereItCannotListen) {
  KeyValueServer server({.token = test_token()});
  const auto taken = error_text<DistributedError>(
      [&] { KeyValueServer({.port = server.port(), .token = test_token()}); });
  expect_parts(taken, {"127.0.0.1:" + std::to_string(server.port()), "in use", "MASTER_PORT"});
  const auto other = error_text<DistributedError>(
      [] { KeyValueServer({.host = "192.0.2.1", .token = test_token()}); });
  expect_parts(other, {"192.0.2.1:0"});
}

TEST(KeyValueServer, CanBeStartedAgainAtOnceOnItsPort) {
  auto server = std::make_unique<KeyValueServer>(KeyValueServerOptions{.token = test_token()});
  const auto port = server->port();
  for (int i = 0; i < 20; ++i) {
    const auto store = connect_to(*server);
    EXPECT_EQ(store->add("n", 1), 1) << "a key of the server before is there";
    server.reset();  // With a connection, which this side closes first.
    server = std::make_unique<KeyValueServer>(
        KeyValueServerOptions{.port = port, .token = test_token()});
  }
}

TEST(KeyValueServer, StopsWithinASecondWhateverItsClientsDo) {
  auto server = std::make_unique<KeyValueServer>(KeyValueServerOptions{.token = test_token()});
  std::list<Stranger> clients;
  for (int i = 0; i < 64; ++i)
    clients.emplace_back(*server, test_token()).send_message(wait_for("never"));
  for (int i = 0; i < 64; ++i) clients.emplace_back(*server).send("Fulm");
  ASSERT_TRUE(soon([&] { return server->num_connections() == 128; }));
  const auto start = Clock::now();
  server->stop();
  EXPECT_LT(Clock::now() - start, seconds(1));
  for (auto& client : clients) EXPECT_TRUE(client.is_dropped());
  EXPECT_EQ(server->drop_prefix(""), 0U);
  server.reset();
  EXPECT_LT(Clock::now() - start, seconds(1));
}

TEST(KeyValueServer, LetsNobodyInWithoutTheToken) {
  KeyValueServer server({.token = test_token()});
  // A request without a handshake, and after a hello that says that there is no token.
  StoreMessageWriter set(StoreRequest::kSet);
  set.texts({"key", "value"});
  const auto request = std::move(set).take() + "\xff\xff\xff\xff";  // The end, if it was let in.
  Stranger blunt(server);
  blunt.send(request);
  EXPECT_TRUE(blunt.is_dropped());
  Stranger open(server);
  open.send(std::string("Fulmen\r\n\x01\x00\x01", 11) + std::string(37, 'r') + request);
  while (!open.is_dropped()) {  // The server's hello comes first.
  }
  Stranger liar(server);
  liar.send(std::string("Fulmen\r\n\x01\x01\x01", 11) + std::string(37, 'r') +
            std::string(32, 'p') + request);
  while (!liar.is_dropped()) {
  }
  EXPECT_TRUE(soon([&] { return server.num_connections() == 0; }));
  EXPECT_EQ(server.num_keys(), 0U);
}

TEST(KeyValueServer, FreesTheWaitOfAClientThatWasKilled) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const pid_t child = ::fork();  // Before there is a server, so that it inherits nothing of it.
  if (child == 0) {
    std::uint16_t port = 0;
    if (::read(pipe[0], &port, sizeof port) != sizeof port) ::_exit(1);
    const KeyValueStoreOptions options{.host = "127.0.0.1", .port = port, .token = test_token()};
    KeyValueStore(options).get("never");
    ::_exit(2);
  }
  KeyValueServer server({.token = test_token()});
  const auto port = server.port();
  ASSERT_EQ(::write(pipe[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  ASSERT_TRUE(soon([&] { return server.num_bytes() > 0; })) << "it never waited";
  ::kill(child, SIGKILL);
  EXPECT_TRUE(soon([&] { return server.num_connections() == 0 && server.num_bytes() == 0; }));
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
  for (const int end : pipe) ::close(end);
  connect_to(server)->set("never", std::string("now"));  // Wakes nobody who is gone.
  EXPECT_EQ(server.num_keys(), 1U);
}

TEST(KeyValueServer, DropsAMessageThatIsTooLongBeforeItHasRoomForIt) {
  KeyValueServer server({.token = test_token()});
  for (const auto* length : {"\xff\xff\xff\xff", "\x01\x00\x00\x01", "\x80\x00\x00\x00"}) {
    Stranger client(server, test_token());
    client.send({length, 4});
    EXPECT_TRUE(client.is_dropped());
    EXPECT_EQ(server.num_bytes(), 0U);
  }
  Stranger empty(server, test_token());
  empty.send(std::string_view("\0\0\0\0", 4));
  EXPECT_TRUE(empty.is_dropped());
}

TEST(KeyValueServer, RefusesGarbageFromAClientAndServesItOn) {
  KeyValueServer server({.token = test_token()});
  Stranger client(server, test_token());
  const std::string set(1, static_cast<char>(StoreRequest::kSet));
  const std::string add(1, static_cast<char>(StoreRequest::kAdd));
  const std::string eights(8, '\xff');
  const std::string one("\0\0\0\0\0\0\0\1", 8);
  for (const auto& garbage : {std::string("\xee"),  // An unknown request.
                              std::string(1, '\0'),
                              set,           // Without its fields.
                              set + eights,  // 2^64 - 1 texts.
                              set + "\x7f" + eights,
                              set + one + "\xff\xff\xff\xff",           // A text of 4 GiB.
                              set + one + std::string("\0\0\0\1k", 5),  // A key without a value.
                              add + std::string("\0\0\0\1k", 5) + "1234567",
                              add + std::string("\0\0\0\1k", 5) + "123456789"}) {
    client.send_message(garbage);
    const auto response = client.receive();
    ASSERT_FALSE(response.empty());
    EXPECT_EQ(response[0], static_cast<char>(StoreResponse::kRefused));
  }
  EXPECT_EQ(server.num_keys(), 0U);
  StoreMessageWriter good(StoreRequest::kSet);
  good.texts({"key", "value"});
  client.send_message(body_of(std::move(good)));
  EXPECT_EQ(client.receive(), std::string(1, static_cast<char>(StoreResponse::kDone)));
  EXPECT_EQ(connect_to(server)->get_to_str("key"), "value");
}

TEST(KeyValueServer, SurvivesRandomBytesFromAClient) {
  KeyValueServer server({.token = test_token()});
  std::uint32_t state = 1;
  const auto next = [&] { return static_cast<char>((state = state * 1664525 + 1013904223) >> 24); };
  for (int round = 0; round < 300; ++round) {
    Stranger client(server, test_token());
    std::string body(1, static_cast<char>(round % 13));
    for (int i = 0; i < round % 40; ++i) body += i % 8 < 6 ? '\0' : next();
    client.send_message(body);
    client.send("\xff\xff\xff\xff");  // Ends it in any case.
    while (!client.receive().empty()) {
    }
  }
  EXPECT_EQ(connect_to(server)->add("still there", 1), 1);
}

TEST(KeyValueServer, DropsAClientThatSpeaksWhileItWaits) {
  KeyValueServer server({.token = test_token()});
  Stranger client(server, test_token());
  client.send_message(wait_for("never"));
  client.send_message(wait_for("never"));
  EXPECT_TRUE(client.is_dropped());
  EXPECT_TRUE(soon([&] { return server.num_bytes() == 0; }));
}

TEST(KeyValueServer, DropsAClientThatDoesNotEndItsMessage) {
  KeyValueServer server({.token = test_token(), .message_limit = milliseconds(200)});
  Stranger client(server, test_token());
  client.send(std::string("\x00\x10\x00\x00partial", 11));
  ASSERT_TRUE(soon([&] { return server.num_bytes() == 1 << 20; }));
  const auto start = Clock::now();
  EXPECT_TRUE(client.is_dropped());
  EXPECT_LT(Clock::now() - start, kFast);
  EXPECT_TRUE(soon([&] { return server.num_bytes() == 0; }));
  // A client may be silent between messages for as long as it wants.
  const auto store = connect_to(server);
  std::this_thread::sleep_for(milliseconds(500));
  EXPECT_EQ(store->add("n", 1), 1);
}

TEST(KeyValueServer, HoldsNoMoreThanItsMemoryAllows) {
  constexpr std::size_t kMost = 1 << 20;
  KeyValueServer server(
      {.token = test_token(), .most_message_bytes = kMost / 4, .most_bytes = kMost});
  const auto store = connect_to(server);
  const std::vector<std::uint8_t> value(kMost / 10, 1);
  int set = 0;
  const auto text = error_text<DistributedError>([&] {
    for (; set < 100; ++set) store->set("key/" + std::to_string(set), value);
  });
  expect_parts(text, {"it is full", "set of \"key/" + std::to_string(set)});
  EXPECT_EQ(set, 7);  // Three quarters of a tenth each.
  EXPECT_LE(server.num_bytes(), kMost);
  // Many messages at once: those that have no room are dropped.
  std::list<Stranger> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back(server, test_token()).send(std::string("\x00\x03\x00\x00..", 6));
    EXPECT_LE(server.num_bytes(), kMost);
  }
  clients.clear();
  EXPECT_EQ(store->get("key/0"), value);
  EXPECT_TRUE(store->deleteKey("key/0"));
  store->set("other", value);
  EXPECT_EQ(store->get("other"), value);
}

TEST(KeyValueServer, LetsNewClientsWaitWhileItHasAsManyAsItMay) {
  KeyValueServer server({.token = test_token(), .most_connections = 3});
  std::list<Stranger> clients;
  for (int i = 0; i < 3; ++i) clients.emplace_back(server, test_token());
  std::thread late([&] { connect_to(server)->set("late", std::string("x")); });
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_EQ(server.num_connections(), 3U);
  EXPECT_EQ(server.num_keys(), 0U);
  clients.front().close();
  late.join();
  EXPECT_EQ(server.num_keys(), 1U);
}

TEST(KeyValueServer, IsReachedThroughACrowdOfSilentStrangers) {
  KeyValueServer server(
      {.token = test_token(), .most_unproven = 4, .handshake_limit = milliseconds(200)});
  std::list<Stranger> crowd;
  for (int i = 0; i < 12; ++i) crowd.emplace_back(server);
  ASSERT_TRUE(soon([&] { return server.num_connections() == 4; }));
  const auto start = Clock::now();
  EXPECT_EQ(connect_to(server)->add("n", 1), 1);
  EXPECT_LT(Clock::now() - start, kFast);
  for (auto& stranger : crowd) EXPECT_TRUE(stranger.is_dropped());
}

}  // namespace
}  // namespace fulmen::detail
