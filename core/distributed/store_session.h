#pragma once

#include <array>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/distributed/key_value_message.h"
#include "core/distributed/key_value_server.h"
#include "core/distributed/key_value_table.h"

namespace fulmen::detail {

class StoreSession;

/// What the sessions of a server have in common. Only the table and the
/// counts are used by other threads too.
struct StoreState {
  explicit StoreState(const KeyValueServerOptions& given)
      // A part is left for messages, so that a full store can still say that it is full.
      : options(given), table(given.most_bytes / 4 * 3) {}

  const KeyValueServerOptions options;
  mutable std::mutex mutex;  ///< Of the table.
  KeyValueTable table;
  std::atomic<std::size_t> message_bytes{0};
  std::atomic<std::size_t> sessions{0};
  /// Who waits for a key; each waits for one at a time.
  std::unordered_map<std::string, std::unordered_set<StoreSession*>> waiters;
};

/// A connection to a server that has shown the token. Kept alive by its handlers; dropped when the
/// client closes it, breaks the rules, or takes too long within a message.
class StoreSession : public std::enable_shared_from_this<StoreSession> {
 public:
  StoreSession(StoreState& state, boost::asio::ip::tcp::socket socket);
  ~StoreSession();
  StoreSession(const StoreSession&) = delete;
  StoreSession& operator=(const StoreSession&) = delete;

  void start() { read_length(); }
  void drop();

 private:
  enum class Phase : std::uint8_t { kIdle, kReading, kWaiting, kWriting };

  void read_length();
  void on_length();
  void read_body();
  void on_body();
  void handle();
  void change_table(StoreRequest request, StoreMessageReader& reader);
  void ask_table(StoreRequest request, StoreMessageReader& reader);
  void begin_wait(StoreRequest request, StoreMessageReader& reader);
  void look_again();
  void give_up();
  void stop_waiting();
  void respond(StoreMessageWriter response);
  void refuse(std::string_view reason);
  void on_written();

  /// Calls back unless another limit was set, or none, before it has passed.
  void set_limit(std::chrono::milliseconds limit, void (StoreSession::*then)());
  void clear_limit();
  bool reserve(std::size_t size);
  void release();
  std::unordered_set<StoreSession*> wake(const std::string& key) const;

  StoreState& state_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::uint64_t limits_ = 0;  ///< Counts them, as a timer's handler may be under way already.
  Phase phase_ = Phase::kIdle;
  bool dropped_ = false;
  bool has_next_ = false;  ///< The next request has begun to come before this response had left.
  std::array<std::uint8_t, kLengthBytes> length_ = {};
  std::string body_;
  std::string response_;
  std::size_t reserved_ = 0;
  StoreRequest waits_ = StoreRequest::kWait;
  std::vector<std::string> awaited_;
  std::string waiting_on_;  ///< The key under which it is in the state's waiters.
};

}  // namespace fulmen::detail
