#include "callbacks/progress_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "callbacks/text_table.h"

namespace fulmen::detail {
namespace {

std::string bar(int width, std::int64_t done, std::int64_t total) {
  const double share = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1;
  const int filled = std::clamp(static_cast<int>(share * width), 0, width);
  std::string text(static_cast<std::size_t>(filled), '=');
  if (filled < width) text += ">";
  text.resize(static_cast<std::size_t>(width), ' ');
  return " [" + text + "]";
}

std::string clock_time(double seconds) {
  const auto whole = static_cast<long long>(std::min(seconds, 1e9) + 0.5);
  std::array<char, 64> buffer;
  if (whole < 3600) {
    std::snprintf(buffer.data(), buffer.size(), "%lld:%02lld", whole / 60, whole % 60);
  } else {
    std::snprintf(buffer.data(),
                  buffer.size(),
                  "%lld:%02lld:%02lld",
                  whole / 3600,
                  whole / 60 % 60,
                  whole % 60);
  }
  return buffer.data();
}

std::string rate_text(double rate) {
  if (rate <= 0 || !std::isfinite(rate)) return "? it/s";
  return rate >= 1 ? format_number("%.1f it/s", rate) : format_number("%.1f s/it", 1 / rate);
}

/// Of constant width while a value moves little.
std::string metric_text(double value) {
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= 1e-3 && size < 1e5);
  return format_number(fixed ? "%.3f" : "%.2e", value);
}

}  // namespace

std::string format_progress(const ProgressText& text) {
  const double rate = text.seconds > 0 ? static_cast<double>(text.counted) / text.seconds : 0;
  std::string line = text.label + ": " + std::to_string(text.done) + "/";
  line += text.total ? std::to_string(*text.total) : "?";
  const bool has_bar = text.bar_width > 0 && text.total;
  if (has_bar) line += bar(text.bar_width, text.done, *text.total);
  line += (has_bar ? " " : ", ") + rate_text(rate);
  if (text.total && text.done < *text.total && rate > 0) {
    line += ", eta " + clock_time(static_cast<double>(*text.total - text.done) / rate);
  } else {
    line += ", elapsed " + clock_time(std::max(text.seconds, 0.0));
  }
  const char* separator = ", ";
  for (const auto& [name, value] : text.metrics) {
    line += separator + name + "=" + metric_text(value);
    separator = " ";
  }
  return line;
}

}  // namespace fulmen::detail
