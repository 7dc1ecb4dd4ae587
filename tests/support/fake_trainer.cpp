#include "tests/support/fake_trainer.h"

#include <stdlib.h>

#include <system_error>

#include "tests/support/fake_module.h"

namespace fulmen {

int CapturingSink::count(LogLevel level, std::string_view part) const {
  int found = 0;
  for (const auto& [its_level, line] : lines) {
    found += its_level == level && line.find(part) != std::string::npos;
  }
  return found;
}

std::string CapturingSink::all() const {
  std::string text;
  for (const auto& [level, line] : lines) text += line + "\n";
  return text;
}

FakeTrainer::FakeTrainer() : module_(std::make_shared<FakeModule>()) {}
FakeTrainer::~FakeTrainer() = default;

std::optional<double> FakeTrainer::metric(std::string_view name) const {
  const auto found = metrics.find(std::string(name));
  return found == metrics.end() ? std::nullopt : std::optional(found->second);
}

std::map<std::string, double> FakeTrainer::progress_bar_metrics() const {
  ++bar_reads;
  return metrics;
}

void FakeTrainer::log_value(std::string_view name, const at::Tensor& value, const LogOptions&) {
  metrics[std::string(name)] = value.item<double>();
}

void FakeTrainer::log_value(std::string_view name, double value, const LogOptions&) {
  metrics[std::string(name)] = value;
}

void FakeTrainer::save_checkpoint(const std::filesystem::path& directory, CheckpointScope scope) {
  if (on_save) on_save(directory, scope);
  saved.push_back({directory, scope});
}

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "fulmen_test_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw std::system_error(errno, std::generic_category(), name);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace fulmen
