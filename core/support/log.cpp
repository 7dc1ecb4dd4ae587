#include "fulmen/core/support/log.h"

#include <iostream>
#include <utility>

namespace fulmen {
namespace {

std::string_view prefix(LogLevel level) {
  switch (level) {
    case LogLevel::kWarning:
      return "warning: ";
    case LogLevel::kError:
      return "error: ";
    case LogLevel::kInfo:
      break;
  }
  return "";
}

class StderrSink : public LogSink {
 public:
  void write(LogLevel level, std::string_view line) override {
    // One insertion and one flush: lines of several processes on one terminal do not mix.
    std::string text;
    text.append(prefix(level)).append(line).push_back('\n');
    std::cerr << text << std::flush;
  }
};

}  // namespace

std::shared_ptr<LogSink> stderr_sink() {
  return std::make_shared<StderrSink>();
}

Log::Log(std::shared_ptr<LogSink> sink) : sink_(sink ? std::move(sink) : stderr_sink()) {}

void Log::write(LogLevel level, std::string_view line) {
  sink_->write(level, line);
}

}  // namespace fulmen
