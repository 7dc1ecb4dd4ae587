#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "fulmen/core/checkpoint/checkpoint.h"
#include "tests/core/checkpoint/support.h"

namespace fulmen {
namespace {

namespace fs = std::filesystem;

std::size_t entries_in(const fs::path& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), {}));
}

TEST(CheckpointPointer, NamesTheCheckpointThatWasWrittenLast) {
  const ScratchDirectory scratch;
  EXPECT_EQ(read_pointer(scratch.path(), "last"), std::nullopt);
  write_checkpoint(scratch / "a", sample_contents(1));
  write_checkpoint(scratch / "b", sample_contents(2));
  write_pointer(scratch.path(), "last", "a");
  EXPECT_EQ(read_pointer(scratch.path(), "last"), scratch / "a");
  write_pointer(scratch.path(), "last", "b");
  EXPECT_EQ(read_pointer(scratch.path(), "last"), scratch / "b");
  EXPECT_EQ(read_bytes(scratch / "last"), "b\n");
  EXPECT_EQ(entries_in(scratch.path()), 3u);
  EXPECT_TRUE(same_contents(read_checkpoint(scratch / "last"), sample_contents(2)));
}

TEST(CheckpointPointer, IsWrittenOnlyForACheckpointBesideIt) {
  const ScratchDirectory scratch;
  write_checkpoint(scratch / "a", {});
  write_pointer(scratch.path(), "last", "a");
  fs::create_directory(scratch / "foreign");
  for (const char* name : {"absent", "foreign", "", "..", "../a", "a/../a", "last"}) {
    checkpoint_error([&] { write_pointer(scratch.path(), "last", name); });
  }
  for (const char* pointer : {"", "../last", ".last", "a/last"}) {
    checkpoint_error([&] { write_pointer(scratch.path(), pointer, "a"); });
    checkpoint_error([&] { read_pointer(scratch.path(), pointer); });
  }
  EXPECT_EQ(read_pointer(scratch.path(), "last"), scratch / "a");
}

TEST(CheckpointPointer, IsRefusedWhenDamagedOrDangling) {
  const ScratchDirectory scratch;
  write_checkpoint(scratch / "a", {});
  const fs::path outside = scratch.path().string() + "/sub";
  fs::create_directory(outside);
  write_checkpoint(outside / "b", {});
  for (const char* text : {"", "\n", "../a", "sub/b", "/etc", "a\nb\n", "absent\n", "sub\n"}) {
    write_bytes(scratch / "last", text);
    EXPECT_HAS(checkpoint_error([&] { read_pointer(scratch.path(), "last"); }), "last");
  }
  write_bytes(scratch / "last", std::string(5000, 'a'));
  checkpoint_error([&] { read_pointer(scratch.path(), "last"); });
  write_bytes(scratch / "last", "a\n");
  fs::remove_all(scratch / "a");
  EXPECT_HAS(checkpoint_error([&] { read_pointer(scratch.path(), "last"); }), "'a'");
}

TEST(CheckpointDirectory, ListsFinishedCheckpointsOldestFirst) {
  const ScratchDirectory scratch;
  EXPECT_TRUE(list_checkpoints(scratch / "absent").empty());
  for (const char* name : {"z", "a", "m"}) write_checkpoint(scratch / name, {});
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time(scratch / "z" / "manifest.json", now - std::chrono::hours(3));
  fs::last_write_time(scratch / "a" / "manifest.json", now - std::chrono::hours(1));
  fs::last_write_time(scratch / "m" / "manifest.json", now - std::chrono::hours(2));
  write_pointer(scratch.path(), "last", "m");
  fs::create_directory(scratch / "foreign");
  fs::copy(scratch / "a", scratch / ".a.tmp-host-12-0123456789abcdef");
  const std::vector<fs::path> expected = {scratch / "z", scratch / "m", scratch / "a"};
  EXPECT_EQ(list_checkpoints(scratch.path()), expected);
  checkpoint_error([&] { read_checkpoint(scratch / ".a.tmp-host-12-0123456789abcdef"); });
}

TEST(CheckpointDirectory, RemovesACheckpoint) {
  const ScratchDirectory scratch;
  write_checkpoint(scratch / "a", sample_contents(1));
  write_checkpoint(scratch / "b", sample_contents(2));
  remove_checkpoint(scratch / "a/");
  EXPECT_EQ(entries_in(scratch.path()), 1u);
  EXPECT_TRUE(same_contents(read_checkpoint(scratch / "b"), sample_contents(2)));
}

TEST(CheckpointDirectory, NeverRemovesWhatFulmenDidNotWrite) {
  const ScratchDirectory scratch;
  fs::create_directory(scratch / "foreign");
  write_bytes(scratch / "foreign" / "model.safetensors", "mine");
  checkpoint_error([&] { remove_checkpoint(scratch / "foreign"); });
  EXPECT_EQ(read_bytes(scratch / "foreign" / "model.safetensors"), "mine");

  write_checkpoint(scratch / "a", sample_contents(1));
  write_bytes(scratch / "a" / "notes.json", "mine");
  EXPECT_HAS(checkpoint_error([&] { remove_checkpoint(scratch / "a"); }), "notes.json");
  EXPECT_TRUE(same_contents(read_checkpoint(scratch / "a"), sample_contents(1)));

  fs::create_directory_symlink(scratch / "a", scratch / "link");
  checkpoint_error([&] { remove_checkpoint(scratch / "link"); });
  checkpoint_error([&] { remove_checkpoint(scratch / "absent"); });
  checkpoint_error([&] { remove_checkpoint(scratch.path()); });
}

/// A process that has ended and was waited for.
pid_t dead_process() {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  return child;
}

TEST(CheckpointDirectory, RemovesOnlyTemporariesOfDeadWritersOfThisHost) {
  const ScratchDirectory scratch;
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  const auto name = [&](const std::string& on, pid_t process) {
    return ".x.tmp-" + on + "-" + std::to_string(process) + "-0123456789abcdef";
  };
  const auto dead = dead_process();
  const std::string stale = name(host.data(), dead);
  const std::string with_foreign = ".y" + stale.substr(2);
  const std::string stale_file = ".last" + stale.substr(2);
  const std::vector<std::string> kept = {name(host.data(), ::getpid()),
                                         name("other-host", dead),
                                         stale + "0",
                                         stale.substr(1),
                                         ".tmp-1",
                                         with_foreign};
  for (const auto& directory : kept) fs::create_directory(scratch / directory);
  fs::create_directory(scratch / stale);
  write_bytes(scratch / stale / "model.safetensors", "half");
  write_bytes(scratch / with_foreign / "notes.txt", "mine");
  write_bytes(scratch / stale_file, "half");
  const auto removed = remove_stale_temporaries(scratch.path());
  EXPECT_EQ(removed, (std::vector<fs::path>{scratch / stale_file, scratch / stale}));
  EXPECT_FALSE(fs::exists(scratch / stale));
  EXPECT_FALSE(fs::exists(scratch / stale_file));
  for (const auto& directory : kept) EXPECT_TRUE(fs::exists(scratch / directory)) << directory;
  EXPECT_EQ(read_bytes(scratch / with_foreign / "notes.txt"), "mine");
}

}  // namespace
}  // namespace fulmen
