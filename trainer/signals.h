#pragma once

#include <cstddef>
#include <vector>

namespace fulmen::detail {

/// Catches signals for its lifetime: the first one is remembered, the second acts as if none were
/// caught.
class SignalGuard {
 public:
  static constexpr std::size_t kMost = 4;
  /// At most kMost signals. Throws ConfigError if handlers cannot be installed.
  explicit SignalGuard(std::vector<int> signals);
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  /// 0 or the number of the signal that came.
  static int received() noexcept;
  /// Puts the previous handlers back and passes on the signal that came, or `of_another_rank` if
  /// none did; 0: none.
  void deliver(int of_another_rank);

 private:
  void restore() noexcept;

  bool installed_ = false;
};

}  // namespace fulmen::detail
