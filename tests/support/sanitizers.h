#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FULMEN_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FULMEN_SANITIZED 1
#endif
#endif

namespace fulmen {

/// Whether the program is built with a sanitizer that keeps freed memory and slows it down.
#ifdef FULMEN_SANITIZED
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace fulmen
