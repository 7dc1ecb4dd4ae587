#include "core/checkpoint/temporary.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

constexpr std::string_view kMark = ".tmp-";
constexpr std::size_t kRandomDigits = 16;

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return name.data();
}

std::string random_digits() {
  std::random_device device;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string digits;
  for (std::size_t i = 0; i < kRandomDigits; ++i) digits.push_back(kDigits[device() % 16]);
  return digits;
}

struct Owner {
  std::string_view host;
  pid_t process = 0;
};

/// Host names may hold a hyphen, so the name is read from its end.
std::optional<Owner> owner_of(std::string_view name) {
  const std::size_t mark = name.rfind(kMark);
  if (name.empty() || name.front() != '.' || mark == std::string_view::npos || mark < 2) return {};
  std::string_view rest = name.substr(mark + kMark.size());
  const std::size_t random = rest.rfind('-');
  if (random == std::string_view::npos || rest.size() - random - 1 != kRandomDigits) return {};
  if (rest.find_first_not_of("0123456789abcdef", random + 1) != std::string_view::npos) return {};
  rest = rest.substr(0, random);
  const std::size_t process = rest.rfind('-');
  if (process == std::string_view::npos || process == 0) return {};
  Owner owner{.host = rest.substr(0, process)};
  const char* end = rest.data() + rest.size();
  const auto [stop, error] = std::from_chars(rest.data() + process + 1, end, owner.process);
  if (error != std::errc() || stop != end || owner.process <= 0) return {};
  return owner;
}

bool is_own_file(const std::filesystem::directory_entry& entry) {
  std::error_code error;
  const auto extension = entry.path().extension();
  return std::filesystem::is_regular_file(entry.symlink_status(error)) &&
         (extension == ".json" || extension == ".safetensors");
}

}  // namespace

std::filesystem::path temporary_beside(const std::filesystem::path& target) {
  std::string name = "." + target.filename().string();
  name.append(kMark).append(host_name()).append("-").append(std::to_string(::getpid()));
  return target.parent_path() / name.append("-").append(random_digits());
}

bool is_temporary_name(std::string_view name) {
  return owner_of(name).has_value();
}

bool owner_is_gone(std::string_view temporary_name) {
  const auto owner = owner_of(temporary_name);
  if (!owner || owner->host != host_name()) return false;
  return ::kill(owner->process, 0) != 0 && errno == ESRCH;
}

void replace_file(const std::filesystem::path& path,
                  FileSystem& file_system,
                  const std::function<void(WritableFile&)>& fill) {
  const auto temporary = temporary_beside(path);
  try {
    const auto file = file_system.create_file(temporary);
    fill(*file);
    file->sync();
    file->close();
    file_system.rename(temporary, path, ExistingTarget::kReplace);
  } catch (...) {
    try {
      if (std::filesystem::exists(temporary)) file_system.remove_file(temporary);
    } catch (const std::exception&) {
      // The first error is the one to report.
    }
    throw;
  }
  file_system.sync_directory(parent_of(path));
}

void remove_own_directory(const std::filesystem::path& directory, FileSystem& file_system) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_own_file(*entry)) files.push_back(entry->path());
  }
  for (const auto& file : files) file_system.remove_file(file);
  file_system.remove_directory(directory);
}

std::filesystem::path with_plain_name(const std::filesystem::path& path) {
  auto plain = path.lexically_normal();
  if (plain.filename().empty()) plain = plain.parent_path();
  if (plain.filename().empty() || plain.filename() == "." || plain.filename() == "..") {
    fail<CheckpointError>("checkpoint", "the path '", path.string(), "' does not end in a name.");
  }
  return plain;
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  const auto parent = path.parent_path();
  return parent.empty() ? "." : parent;
}

}  // namespace fulmen::detail
