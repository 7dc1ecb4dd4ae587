#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "tools/run/terminal.h"

namespace fulmen::detail {

/// A file that closes itself; -1: none.
class OwnedFile {
 public:
  explicit OwnedFile(int fd) : fd_(fd) {}
  ~OwnedFile();
  OwnedFile(const OwnedFile&) = delete;
  OwnedFile& operator=(const OwnedFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

struct RankOutputOptions {
  int pipe = -1;         ///< Of the rank; owned from here on.
  std::string prefix;    ///< Of each line on the terminal.
  int terminal_fd = -1;  ///< -1: not to the terminal.
  std::shared_ptr<OwnedFile> file = {};
  std::function<void()> on_end;  ///< The pipe has ended.
};

/// Passes a pipe of a rank on: whole lines with a prefix to the terminal, the bytes to a file.
/// Keeps the last lines.
class RankOutput : public std::enable_shared_from_this<RankOutput> {
 public:
  RankOutput(boost::asio::io_context& context, Terminal& terminal, RankOutputOptions options);
  void start();
  /// Nothing is read any more.
  void close();
  /// At most 20 lines and 4 kB.
  std::string last_lines() const;

 private:
  void read();
  void pass_on(std::size_t size, bool is_end);
  void keep(const std::string& line);

  Terminal& terminal_;
  RankOutputOptions options_;
  boost::asio::posix::stream_descriptor pipe_;
  boost::asio::steady_timer timer_;
  std::string line_;
  std::deque<std::string> last_;
  std::array<char, 16384> buffer_ = {};
};

}  // namespace fulmen::detail
