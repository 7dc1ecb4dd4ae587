#include "core/distributed/store_session.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <utility>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

constexpr std::int64_t kLongestWait = 30LL * 24 * 3600 * 1000;

}  // namespace

StoreSession::StoreSession(StoreState& state, tcp::socket socket)
    : state_(state), socket_(std::move(socket)), timer_(socket_.get_executor()) {
  ++state_.sessions;
}

StoreSession::~StoreSession() {
  stop_waiting();
  release();
  --state_.sessions;
}

void StoreSession::drop() {
  if (std::exchange(dropped_, true)) return;
  stop_waiting();
  clear_limit();
  release();
  error_code ignored;
  socket_.close(ignored);
}

// --- Reading a request ---

/// Goes on while a response is awaited or written, so that the end of a client is seen at once.
void StoreSession::read_length() {
  asio::async_read(socket_,
                   asio::buffer(length_),
                   [self = shared_from_this()](const error_code& error, std::size_t) {
                     if (self->dropped_) return;
                     error ? self->drop() : self->on_length();
                   });
}

void StoreSession::on_length() {
  if (phase_ == Phase::kWriting) {
    has_next_ = true;
  } else if (phase_ == Phase::kWaiting) {
    drop();  // One request at a time.
  } else {
    read_body();
  }
}

void StoreSession::read_body() {
  const auto size = decode_length(length_.data());
  if (size == 0 || size > state_.options.most_message_bytes || !reserve(size)) return drop();
  phase_ = Phase::kReading;
  body_.resize(size);
  set_limit(state_.options.message_limit, &StoreSession::drop);
  asio::async_read(socket_,
                   asio::buffer(body_),
                   [self = shared_from_this()](const error_code& error, std::size_t) {
                     if (self->dropped_) return;
                     error ? self->drop() : self->on_body();
                   });
}

void StoreSession::on_body() {
  clear_limit();
  phase_ = Phase::kIdle;
  read_length();
  try {
    handle();
  } catch (const std::exception& error) {  // Of its fields, or for want of memory.
    refuse(error.what());
  }
}

// --- Requests ---

void StoreSession::handle() {
  StoreMessageReader reader(body_);
  const auto request = static_cast<StoreRequest>(reader.code());
  switch (request) {
    case StoreRequest::kGet:
    case StoreRequest::kWait:
      return begin_wait(request, reader);
    case StoreRequest::kSet:
    case StoreRequest::kAdd:
    case StoreRequest::kCompareSet:
    case StoreRequest::kAppend:
      return change_table(request, reader);
    case StoreRequest::kCheck:
    case StoreRequest::kDelete:
    case StoreRequest::kNumKeys:
    case StoreRequest::kListKeys:
    case StoreRequest::kDropPrefix:
      return ask_table(request, reader);
  }
  fail<DistributedError>("The store", "request ", static_cast<int>(request), " is unknown.");
}

/// What may end waits.
void StoreSession::change_table(StoreRequest request, StoreMessageReader& reader) {
  StoreMessageWriter response(StoreResponse::kDone);
  std::vector<std::string> changed;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    auto& table = state_.table;
    if (request == StoreRequest::kSet) {
      auto pairs = reader.texts();
      reader.end();
      table.set_all(pairs);
      for (std::size_t i = 0; i < pairs.size(); i += 2) changed.push_back(std::move(pairs[i]));
    } else {
      const auto& key = changed.emplace_back(reader.text());
      if (request == StoreRequest::kAdd) {
        const auto amount = reader.number();
        reader.end();
        response.number(table.add(key, amount));
      } else if (request == StoreRequest::kAppend) {
        const std::string value(reader.text());
        reader.end();
        table.append(key, value);
      } else {
        const std::string expected(reader.text());
        const std::string desired(reader.text());
        reader.end();
        response.text(table.compare_set(key, expected, desired));
      }
    }
  }
  respond(std::move(response));
  for (const auto& key : changed) {
    for (auto* session : wake(key)) session->look_again();
  }
}

/// What ends none.
void StoreSession::ask_table(StoreRequest request, StoreMessageReader& reader) {
  StoreMessageWriter response(StoreResponse::kDone);
  std::unique_lock<std::mutex> lock(state_.mutex);
  auto& table = state_.table;
  if (request == StoreRequest::kCheck) {
    response.number(table.first_missing(reader.texts()) == nullptr ? 1 : 0);
  } else if (request == StoreRequest::kDelete) {
    response.number(table.erase(std::string(reader.text())) ? 1 : 0);
  } else if (request == StoreRequest::kDropPrefix) {
    response.number(static_cast<std::int64_t>(table.drop_prefix(std::string(reader.text()))));
  } else if (request == StoreRequest::kNumKeys) {
    response.number(static_cast<std::int64_t>(table.size()));
  } else {
    response.texts(table.keys());
  }
  lock.unlock();
  respond(std::move(response));
}

// --- Waits ---

void StoreSession::begin_wait(StoreRequest request, StoreMessageReader& reader) {
  const auto limit = std::clamp<std::int64_t>(reader.number(), 0, kLongestWait);
  awaited_ = reader.texts();
  reader.end();
  waits_ = request;
  phase_ = Phase::kWaiting;
  set_limit(milliseconds(limit), &StoreSession::give_up);
  look_again();
}

std::unordered_set<StoreSession*> StoreSession::wake(const std::string& key) const {
  const auto it = state_.waiters.find(key);
  return it == state_.waiters.end() ? std::unordered_set<StoreSession*>() : it->second;
}

/// Answers if all keys are there, else waits for the first that is not.
void StoreSession::look_again() {
  stop_waiting();
  StoreMessageWriter response(StoreResponse::kDone);
  try {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    if (const auto* missing = state_.table.first_missing(awaited_); missing != nullptr) {
      waiting_on_ = *missing;
      state_.waiters[waiting_on_].insert(this);
      return;
    }
    if (waits_ == StoreRequest::kGet) {
      response.number(static_cast<std::int64_t>(awaited_.size()));
      for (const auto& key : awaited_) {
        response.text(*state_.table.find(key));
        if (response.size() > state_.options.most_message_bytes) break;  // To be refused.
      }
    }
  } catch (const std::exception& error) {
    return refuse(error.what());
  }
  respond(std::move(response));
}

void StoreSession::give_up() {
  StoreMessageWriter response(StoreResponse::kTimedOut);
  response.text(waiting_on_);
  respond(std::move(response));
}

void StoreSession::stop_waiting() {
  const auto it = state_.waiters.find(waiting_on_);
  if (it == state_.waiters.end()) return;
  it->second.erase(this);
  if (it->second.empty()) state_.waiters.erase(it);
}

// --- Responses ---

void StoreSession::refuse(std::string_view reason) {
  StoreMessageWriter response(StoreResponse::kRefused);
  response.text(reason);
  respond(std::move(response));
}

void StoreSession::respond(StoreMessageWriter response) {
  if (dropped_) return;
  stop_waiting();
  awaited_ = {};
  body_ = {};
  release();
  const auto size = response.size();
  if (size > state_.options.most_message_bytes) {
    return refuse("The store: the response has more than the " +
                  std::to_string(state_.options.most_message_bytes) +
                  " bytes that one may have. Ask for fewer keys at a time.");
  }
  if (!reserve(size)) return drop();
  phase_ = Phase::kWriting;
  response_ = std::move(response).take();
  set_limit(state_.options.message_limit, &StoreSession::drop);
  asio::async_write(socket_,
                    asio::buffer(response_),
                    [self = shared_from_this()](const error_code& error, std::size_t) {
                      if (self->dropped_) return;
                      error ? self->drop() : self->on_written();
                    });
}

void StoreSession::on_written() {
  clear_limit();
  response_ = {};
  release();
  phase_ = Phase::kIdle;
  if (std::exchange(has_next_, false)) read_body();
}

// --- Limits ---

void StoreSession::set_limit(milliseconds limit, void (StoreSession::*then)()) {
  timer_.expires_after(limit);
  timer_.async_wait([weak = weak_from_this(), count = ++limits_, then](const error_code& error) {
    const auto self = weak.lock();
    if (error || self == nullptr || self->dropped_ || self->limits_ != count) return;
    (self.get()->*then)();
  });
}

void StoreSession::clear_limit() {
  ++limits_;
  timer_.cancel();
}

bool StoreSession::reserve(std::size_t size) {
  bool fits = false;
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    const auto used = state_.table.bytes() + state_.message_bytes;
    fits = used <= state_.options.most_bytes && size <= state_.options.most_bytes - used;
  }
  if (!fits) return false;
  state_.message_bytes += size;
  reserved_ += size;
  return true;
}

void StoreSession::release() {
  state_.message_bytes -= std::exchange(reserved_, 0);
}

}  // namespace fulmen::detail
