#include "tools/run/connection.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <sstream>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t kMostWaiting = 64;  // Messages to somebody who does not read.

}  // namespace

Connection::Connection(asio::ip::tcp::socket socket, const BeatOptions& beat)
    : socket_(std::move(socket)), beat_(beat), timer_(socket_.get_executor()) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

void Connection::start(ConnectionEvents events) {
  events_ = std::move(events);
  read_length();
  beat();
}

void Connection::read_length() {
  asio::async_read(socket_,
                   asio::buffer(length_),
                   [self = shared_from_this()](const error_code& error, std::size_t) {
                     if (error) return self->lose("the connection ended: " + error.message());
                     std::size_t size = 0;
                     for (const unsigned char byte : self->length_) size = size << 8 | byte;
                     if (size == 0 || size > kLongestMessage)
                       return self->lose("a message of " + std::to_string(size) + " bytes came");
                     self->read_text(size);
                   });
}

void Connection::read_text(std::size_t size) {
  incoming_.resize(size);
  asio::async_read(socket_,
                   asio::buffer(incoming_),
                   [self = shared_from_this()](const error_code& error, std::size_t) {
                     if (error) return self->lose("the connection ended: " + error.message());
                     self->silent_ = 0;
                     try {
                       const auto message = parse_message(self->incoming_);
                       if (!self->closed_ && !std::holds_alternative<Beat>(message))
                         self->events_.on_message(message);
                     } catch (const DistributedError& failure) {
                       return self->lose(failure.what());
                     }
                     if (!self->closed_) self->read_length();
                   });
}

void Connection::send(const Message& message) {
  if (closed_ || closing_) return;
  const auto text = to_text(message);
  if (outgoing_.size() >= kMostWaiting) return lose("it does not read what is sent to it");
  std::string bytes(4, '\0');
  for (std::size_t i = 0; i < 4; ++i)
    bytes[i] = static_cast<char>(text.size() >> (24 - 8 * i) & 0xff);
  outgoing_.push_back(bytes + text);
  if (outgoing_.size() == 1) write();
}

void Connection::write() {
  asio::async_write(socket_,
                    asio::buffer(outgoing_.front()),
                    [self = shared_from_this()](const error_code& error, std::size_t) {
                      if (error) return self->lose("the connection ended: " + error.message());
                      self->outgoing_.pop_front();
                      if (!self->outgoing_.empty()) return self->write();
                      if (self->closing_) self->close();
                    });
}

void Connection::beat() {
  timer_.expires_after(beat_.interval);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    if (error || self->closed_) return;
    if (++self->silent_ > self->beat_.attempts) {
      std::ostringstream text;
      text << "no sign of life for "
           << static_cast<double>(self->beat_.interval.count() * self->beat_.attempts) / 1000.0
           << " s";
      return self->lose(text.str());
    }
    if (self->outgoing_.empty()) self->send(Beat{});
    self->beat();
  });
}

void Connection::lose(const std::string& reason) {
  if (closed_) return;
  const auto on_lost = std::move(events_.on_lost);
  close();
  if (on_lost) on_lost(reason);
}

void Connection::close_after_writing() {
  closing_ = true;
  if (outgoing_.empty()) close();
}

void Connection::close() {
  closed_ = true;
  error_code ignored;
  timer_.cancel();
  socket_.close(ignored);
}

}  // namespace fulmen::detail
