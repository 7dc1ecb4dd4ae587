#include "tools/run/rank_output.h"

#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <chrono>
#include <utility>

namespace fulmen::detail {
namespace {

constexpr std::size_t kLongestLine = 1 << 16;
constexpr std::size_t kKeptLines = 20;
constexpr std::size_t kKeptBytes = 4096;

}  // namespace

OwnedFile::~OwnedFile() {
  if (fd_ >= 0) ::close(fd_);
}

RankOutput::RankOutput(boost::asio::io_context& context,
                       Terminal& terminal,
                       RankOutputOptions options)
    : terminal_(terminal),
      options_(std::move(options)),
      pipe_(context, options_.pipe),
      timer_(context) {}

void RankOutput::start() {
  read();
}

void RankOutput::close() {
  boost::system::error_code ignored;
  pipe_.close(ignored);
  timer_.cancel();
}

void RankOutput::read() {
  if (options_.terminal_fd >= 0 && terminal_.is_full()) {
    timer_.expires_after(std::chrono::milliseconds(20));
    timer_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
      if (!error) self->read();
    });
    return;
  }
  pipe_.async_read_some(
      boost::asio::buffer(buffer_),
      [self = shared_from_this()](const boost::system::error_code& error, std::size_t size) {
        self->pass_on(size, static_cast<bool>(error));
        if (!error) return self->read();
        if (const auto on_end = std::exchange(self->options_.on_end, {})) on_end();
      });
}

void RankOutput::pass_on(std::size_t size, bool is_end) {
  const std::string_view bytes(buffer_.data(), size);
  if (options_.file != nullptr) write_all(options_.file->fd(), std::string(bytes));
  line_.append(bytes);
  std::string text;
  std::size_t begin = 0;
  for (auto end = line_.find('\n'); end != std::string::npos; end = line_.find('\n', begin)) {
    const auto line = line_.substr(begin, end + 1 - begin);
    keep(line);
    text.append(options_.prefix).append(line);
    begin = end + 1;
  }
  line_.erase(0, begin);
  if ((is_end && !line_.empty()) || line_.size() > kLongestLine) {
    const auto line = std::exchange(line_, {}) + "\n";
    keep(line);
    text.append(options_.prefix).append(line);
  }
  if (options_.terminal_fd >= 0) terminal_.write(options_.terminal_fd, std::move(text));
}

void RankOutput::keep(const std::string& line) {
  last_.push_back(line.size() <= kKeptBytes ? line : "..." + line.substr(line.size() - kKeptBytes));
  if (last_.size() > kKeptLines) last_.pop_front();
}

std::string RankOutput::last_lines() const {
  std::string text;
  for (auto line = last_.rbegin(); line != last_.rend(); ++line) {
    if (!text.empty() && text.size() + line->size() > kKeptBytes) break;
    text.insert(0, *line);
  }
  return text;
}

}  // namespace fulmen::detail
