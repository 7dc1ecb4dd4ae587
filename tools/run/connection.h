#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "tools/run/messages.h"
#include "tools/run/run_options.h"

namespace fulmen::detail {

struct ConnectionEvents {
  std::function<void(const Message&)> on_message;
  /// Once, and nothing after it: the other side closed, was silent, or sent what cannot be read.
  /// Not after close().
  std::function<void(const std::string& reason)> on_lost;
};

/// A connection between an agent and the coordinator, after its handshake: messages with their
/// length before them, four bytes, the highest first. Both sides send a beat when there is nothing
/// else to say.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(boost::asio::ip::tcp::socket socket, const BeatOptions& beat);

  void start(ConnectionEvents events);
  void send(const Message& message);
  /// No more events.
  void close();
  /// Closes when what was sent has left this process.
  void close_after_writing();

 private:
  void read_length();
  void read_text(std::size_t size);
  void write();
  void beat();
  void lose(const std::string& reason);

  boost::asio::ip::tcp::socket socket_;
  BeatOptions beat_;
  boost::asio::steady_timer timer_;
  ConnectionEvents events_;
  std::array<unsigned char, 4> length_ = {};
  std::string incoming_;
  std::deque<std::string> outgoing_;
  bool closing_ = false;
  bool closed_ = false;
  /// Beats of our own since the last message. Not a time: after a pause of this process the other
  /// side is not to blame.
  int silent_ = 0;
};

}  // namespace fulmen::detail
