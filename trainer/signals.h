#pragma once

namespace fulmen::detail {

/// Catches SIGINT and SIGTERM for its lifetime: the first one is remembered, the second acts as if
/// none were caught.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

  /// 0 or the number of the signal that came.
  static int received() noexcept;
  /// Puts the previous handlers back and passes on the signal that came, if one did.
  void deliver();

 private:
  void restore() noexcept;

  bool installed_ = false;
};

}  // namespace fulmen::detail
