#pragma once

#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "fulmen/core/checkpoint/file_system.h"
#include "fulmen/core/support/error.h"
#include "tests/core/checkpoint/support.h"

namespace fulmen {

enum class FaultKind { kFailOnce, kFailFromThenOn, kKillAfter, kKillInside };

/// Fails, or kills the process, at the operation number `at`, counted from 1.
struct Fault {
  int at = 0;
  FaultKind kind = FaultKind::kFailOnce;
};

/// Counts operations and lets one of them go wrong. A write that goes wrong leaves half its bytes.
class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(Fault fault) : fault_(fault) {}

  int count() const { return count_; }

  void create_directory(const std::filesystem::path& path) override {
    perform([&] { posix_file_system().create_directory(path); });
  }
  std::unique_ptr<WritableFile> create_file(const std::filesystem::path& path) override {
    std::unique_ptr<WritableFile> file;
    perform([&] { file = posix_file_system().create_file(path); });
    return std::make_unique<File>(*this, std::move(file));
  }
  void rename(const std::filesystem::path& from,
              const std::filesystem::path& to,
              ExistingTarget existing) override {
    perform([&] { posix_file_system().rename(from, to, existing); });
  }
  void sync_directory(const std::filesystem::path& path) override {
    perform([&] { posix_file_system().sync_directory(path); });
  }
  void remove_file(const std::filesystem::path& path) override {
    perform([&] { posix_file_system().remove_file(path); });
  }
  void remove_directory(const std::filesystem::path& path) override {
    perform([&] { posix_file_system().remove_directory(path); });
  }

 private:
  class File final : public WritableFile {
   public:
    File(FaultyFileSystem& owner, std::unique_ptr<WritableFile> file)
        : owner_(owner), file_(std::move(file)) {}
    void write(const void* data, std::size_t size) override {
      owner_.perform([&] { file_->write(data, size); }, [&] { file_->write(data, size / 2); });
    }
    void sync() override {
      owner_.perform([&] { file_->sync(); });
    }
    void close() override {
      owner_.perform([&] { file_->close(); });
    }

   private:
    FaultyFileSystem& owner_;
    std::unique_ptr<WritableFile> file_;
  };

  void perform(
      const std::function<void()>& whole, const std::function<void()>& half = [] {}) {
    ++count_;
    const bool now = count_ == fault_.at;
    if ((now && fault_.kind == FaultKind::kFailOnce) ||
        (fault_.at > 0 && count_ >= fault_.at && fault_.kind == FaultKind::kFailFromThenOn)) {
      half();
      fail<CheckpointError>("injected", "No space left on device.");
    }
    if (now && fault_.kind == FaultKind::kKillInside) {
      half();
      ::raise(SIGKILL);
    }
    whole();
    if (now && fault_.kind == FaultKind::kKillAfter) ::raise(SIGKILL);
  }

  Fault fault_;
  int count_ = 0;
};

/// Thrown by every operation after the cut. Not a std::exception, so that no one goes on.
struct PowerCut {};

/// Which names that were not flushed with their directory a power cut loses. File systems promise
/// no order among them.
enum class LostNames { kNone, kAll, kDirectories, kFiles };

/// Works on the real file system and remembers what was not flushed when the power went.
class PowerCutFileSystem final : public FileSystem {
 public:
  explicit PowerCutFileSystem(int operations) : left_(operations) {}

  void create_directory(const std::filesystem::path& path) override {
    count_down();
    posix_file_system().create_directory(path);
    changes_.push_back({.directory = path.parent_path(), .to = path});
  }

  std::unique_ptr<WritableFile> create_file(const std::filesystem::path& path) override {
    count_down();
    auto file = posix_file_system().create_file(path);
    unflushed_.insert(path);
    changes_.push_back({.directory = path.parent_path(), .to = path});
    return std::make_unique<File>(*this, path, std::move(file));
  }

  void rename(const std::filesystem::path& from,
              const std::filesystem::path& to,
              ExistingTarget existing) override {
    count_down();
    Change change{.directory = to.parent_path(), .to = to, .from = from};
    if (std::filesystem::is_regular_file(to)) change.replaced = read_bytes(to);
    posix_file_system().rename(from, to, existing);
    if (unflushed_.erase(from) > 0) unflushed_.insert(to);
    // What lies in a renamed directory has moved with it.
    for (auto& other : changes_) {
      if (other.directory == from) other = {.directory = to, .to = to / other.to.filename()};
    }
    std::set<std::filesystem::path> moved;
    for (const auto& file : unflushed_) {
      moved.insert(file.parent_path() == from ? to / file.filename() : file);
    }
    unflushed_ = std::move(moved);
    changes_.push_back(std::move(change));
  }

  void sync_directory(const std::filesystem::path& path) override {
    count_down();
    std::erase_if(changes_, [&](const Change& change) { return change.directory == path; });
  }

  void remove_file(const std::filesystem::path& path) override {
    count_down();
    posix_file_system().remove_file(path);
    unflushed_.erase(path);
  }

  void remove_directory(const std::filesystem::path& path) override {
    count_down();
    posix_file_system().remove_directory(path);
  }

  void lose_what_was_not_flushed(LostNames lost) {
    for (const auto& file : unflushed_) {
      if (std::filesystem::exists(file)) write_bytes(file, "");
    }
    if (lost == LostNames::kNone) return;
    for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) {
      if (!std::filesystem::exists(change->to)) continue;
      const bool is_directory = std::filesystem::is_directory(change->to);
      if (lost == LostNames::kDirectories && !is_directory) continue;
      if (lost == LostNames::kFiles && is_directory) continue;
      if (!change->from) {
        std::filesystem::remove_all(change->to);
        continue;
      }
      std::filesystem::rename(change->to, *change->from);
      if (change->replaced) write_bytes(change->to, *change->replaced);
    }
  }

 private:
  /// A name that the directory on the disk does not know yet.
  struct Change {
    std::filesystem::path directory;
    std::filesystem::path to;
    std::optional<std::filesystem::path> from = {};
    std::optional<std::string> replaced = {};
  };

  class File final : public WritableFile {
   public:
    File(PowerCutFileSystem& owner, std::filesystem::path path, std::unique_ptr<WritableFile> file)
        : owner_(owner), path_(std::move(path)), file_(std::move(file)) {}
    void write(const void* data, std::size_t size) override {
      owner_.count_down();
      file_->write(data, size);
      owner_.unflushed_.insert(path_);
    }
    void sync() override {
      owner_.count_down();
      owner_.unflushed_.erase(path_);
    }
    void close() override {
      owner_.count_down();
      file_->close();
    }

   private:
    PowerCutFileSystem& owner_;
    std::filesystem::path path_;
    std::unique_ptr<WritableFile> file_;
  };

  void count_down() {
    if (left_ == 0) throw PowerCut();
    --left_;
  }

  int left_ = 0;
  std::set<std::filesystem::path> unflushed_;
  std::vector<Change> changes_;
};

}  // namespace fulmen
