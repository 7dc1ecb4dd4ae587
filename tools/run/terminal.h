#pragma once

#include <memory>
#include <string>

namespace fulmen::detail {

/// Writes to standard output and standard error on a thread of its own, so that a terminal which
/// nobody reads holds up the ranks that write, but never the heartbeats.
class Terminal {
 public:
  Terminal();
  /// Writes what is left, for at most 2 s.
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void write(int fd, std::string text);
  /// "fulmen-run: <text>" on standard error.
  void say(const std::string& text);
  /// Whether those who can wait should.
  bool is_full() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// All of it, even where a signal interrupts; nothing more once nobody reads.
void write_all(int fd, const std::string& text);

}  // namespace fulmen::detail
