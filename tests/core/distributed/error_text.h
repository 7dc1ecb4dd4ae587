#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace fulmen::testing {

/// The text of the E that `body` throws; a failure if it throws none.
template <class E, class Body>
std::string error_text(const Body& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

inline void expect_parts(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts) {
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
  }
}

}  // namespace fulmen::testing
