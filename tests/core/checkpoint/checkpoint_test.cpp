#include "fulmen/core/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <boost/json/array.hpp>
#include <cerrno>
#include <cmath>
#include <limits>
#include <memory>

#include "core/checkpoint/json_text.h"
#include "fulmen/core/checkpoint/safetensors.h"
#include "tests/core/checkpoint/support.h"

namespace fulmen {
namespace {

namespace fs = std::filesystem;

std::size_t entries_in(const fs::path& directory) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory), {}));
}

/// A copy of a good checkpoint in which one file has been changed.
class DamagedCheckpoint : public testing::Test {
 protected:
  void SetUp() override { write_checkpoint(path_, sample_contents(3)); }

  void replace_in_manifest(const std::string& from, const std::string& to) {
    std::string text = read_bytes(path_ / "manifest.json");
    const auto at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    write_bytes(path_ / "manifest.json", text.replace(at, from.size(), to));
  }
  std::string refused() {
    checkpoint_error([&] { verify_checkpoint(path_); });
    return checkpoint_error([&] { read_checkpoint(path_); });
  }

  ScratchDirectory scratch_{Medium::kMemory};
  fs::path path_ = scratch_ / "epoch=1";
};

TEST(Checkpoint, GivesBackEverything) {
  const ScratchDirectory scratch;
  const auto path = scratch / "a" / "b" / "epoch=1-step=2";
  write_checkpoint(path, sample_contents(3));
  EXPECT_TRUE(same_contents(read_checkpoint(path), sample_contents(3)));
  EXPECT_TRUE(same_contents(read_checkpoint(path.string() + "/"), sample_contents(3)));
  verify_checkpoint(path);
  EXPECT_EQ(entries_in(path.parent_path()), 1u);
}

TEST(Checkpoint, GivesBackEmptyContents) {
  const ScratchDirectory scratch;
  write_checkpoint(scratch / "a", {});
  EXPECT_TRUE(same_contents(read_checkpoint(scratch / "a"), {}));
}

TEST(Checkpoint, GivesBackTheModelAlone) {
  const ScratchDirectory scratch;
  write_checkpoint(scratch / "a", sample_contents(3));
  fs::remove(scratch / "a" / "trainer.json");
  const auto read = read_checkpoint(scratch / "a", CheckpointParts::kModelOnly);
  EXPECT_TRUE(same_tensors(read.model, sample_contents(3).model));
  EXPECT_EQ(read.aliases, sample_contents(3).aliases);
  EXPECT_TRUE(read.optimizer.empty());
  EXPECT_TRUE(read.trainer.empty());
}

TEST(Checkpoint, GivesBackDoublesBitwise) {
  CheckpointContents contents;
  // The first is a number that Boost.JSON 1.81 reads as its neighbour.
  contents.trainer = {{"list", {1.9379462044713822, -0.0, 1e-310, 0.1}},
                      {"inf", std::numeric_limits<double>::infinity()},
                      {"nan", std::nan("")},
                      {"large", std::uint64_t(-1)},
                      {"nested", {{"small", 6.689921856898562e-217}}}};
  const ScratchDirectory scratch;
  write_checkpoint(scratch / "a", contents);
  const auto read = read_checkpoint(scratch / "a").trainer;
  const auto& list = read.at("list").as_array();
  EXPECT_EQ(list[0].as_double(), 1.9379462044713822);
  EXPECT_TRUE(std::signbit(list[1].as_double()));
  EXPECT_EQ(list[2].as_double(), 1e-310);
  EXPECT_EQ(list[3].as_double(), 0.1);
  EXPECT_TRUE(std::isinf(read.at("inf").as_double()));
  EXPECT_TRUE(std::isnan(read.at("nan").as_double()));
  EXPECT_EQ(read.at("large").as_uint64(), std::uint64_t(-1));
  EXPECT_EQ(read.at("nested").at("small").as_double(), 6.689921856898562e-217);
}

TEST(Checkpoint, RefusesValuesThatCouldNotBeReadAgain) {
  CheckpointContents contents;
  contents.trainer = {{"name", "bad \xff"}};
  const ScratchDirectory scratch;
  EXPECT_HAS(checkpoint_error([&] { write_checkpoint(scratch / "a", contents); }), "trainer.json");
  boost::json::value deep = 1;
  for (int i = 0; i < 1000; ++i) deep = boost::json::array{deep};
  contents.trainer = {{"deep", deep}};
  checkpoint_error([&] { write_checkpoint(scratch / "a", contents); });
  contents = {.aliases = {{"a", "absent"}}};
  EXPECT_HAS(checkpoint_error([&] { write_checkpoint(scratch / "a", contents); }), "'absent'");
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(Checkpoint, NeverOverwrites) {
  const ScratchDirectory scratch;
  write_checkpoint(scratch / "a", sample_contents(1));
  EXPECT_HAS(checkpoint_error([&] { write_checkpoint(scratch / "a", sample_contents(2)); }),
             "exists already");
  EXPECT_TRUE(same_contents(read_checkpoint(scratch / "a"), sample_contents(1)));
  fs::create_directory(scratch / "empty");
  checkpoint_error([&] { write_checkpoint(scratch / "empty", sample_contents(2)); });
  EXPECT_THROW(
      posix_file_system().rename(scratch / "a", scratch / "empty", ExistingTarget::kRefuse),
      CheckpointError);
  EXPECT_EQ(entries_in(scratch.path()), 2u);
}

TEST(Checkpoint, RefusesNamesThatAreNotPlain) {
  const ScratchDirectory scratch;
  for (const char* name : {".hidden", "..", "."}) {
    checkpoint_error([&] { write_checkpoint(scratch / name, {}); });
  }
  checkpoint_error([&] { write_checkpoint("", {}); });
  EXPECT_HAS(checkpoint_error([&] { write_checkpoint(scratch / std::string(300, 'x'), {}); }),
             "shorter name");
}

TEST_F(DamagedCheckpoint, MissingPathsHaveTheirOwnSentences) {
  EXPECT_HAS(checkpoint_error([&] { read_checkpoint(scratch_ / "absent"); }), "does not exist");
  EXPECT_HAS(checkpoint_error([&] { read_checkpoint(scratch_.path()); }),
             "not a Fulmen checkpoint");
  fs::remove(path_ / "optimizer.safetensors");
  const auto text = refused();
  EXPECT_HAS(text, "'optimizer.safetensors' is missing");
  EXPECT_HAS(text, path_.string());
}

TEST_F(DamagedCheckpoint, OtherVersionsAndFormatsHaveTheirOwnSentences) {
  replace_in_manifest("\"version\":1", "\"version\":2");
  EXPECT_HAS(refused(), "version is 2");
  replace_in_manifest("fulmen-checkpoint", "other-checkpoint!");
  EXPECT_HAS(refused(), "not 'fulmen-checkpoint'");
  write_bytes(path_ / "manifest.json", "{\"format\":");
  EXPECT_HAS(refused(), "not valid JSON");
}

TEST_F(DamagedCheckpoint, EntriesThatLeaveTheDirectoryAreRefused) {
  replace_in_manifest("\"trainer.json\"", "\"../trainer.json\"");
  EXPECT_HAS(refused(), "../trainer.json");
}

TEST_F(DamagedCheckpoint, TornFilesAreNamed) {
  for (const char* name : {"model.safetensors",
                           "optimizer.safetensors",
                           "trainer.json",
                           "rank-0.safetensors",
                           "rank-0.json",
                           "manifest.json"}) {
    const std::string good = read_bytes(path_ / name);
    for (std::size_t size = 0; size < good.size(); size += 1 + good.size() / 40) {
      write_bytes(path_ / name, good.substr(0, size));
      EXPECT_HAS(refused(), name);
    }
    write_bytes(path_ / name, good);
  }
  EXPECT_TRUE(same_contents(read_checkpoint(path_), sample_contents(3)));
}

TEST_F(DamagedCheckpoint, AnyFlippedByteIsFound) {
  for (const auto& entry : fs::directory_iterator(path_)) {
    const std::string good = read_bytes(entry.path());
    for (std::size_t i = 0; i < good.size(); ++i) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ 1);
      write_bytes(entry.path(), bad);
      EXPECT_THROW(read_checkpoint(path_), CheckpointError) << entry.path() << " byte " << i;
    }
    write_bytes(entry.path(), good);
  }
}

TEST_F(DamagedCheckpoint, AFlippedDataByteIsReportedByTheNameOfItsTensor) {
  const auto file = path_ / "model.safetensors";
  const auto header = read_safetensors_header(file);
  std::string bytes = read_bytes(file);
  const auto at = header.data_begin + header.tensors.at("encoder.bias").begin + 5;
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_bytes(file, bytes);
  const auto text = refused();
  EXPECT_HAS(text, "'encoder.bias'");
  EXPECT_HAS(text, "model.safetensors");
  EXPECT_HAS(text, "checksum");
}

TEST(Checkpoint, ReadsWeightsAloneFromAFile) {
  const ScratchDirectory scratch;
  write_safetensors(
      scratch / "w.safetensors", {{"a", torch::ones({2})}}, {{"tied", "a"}, {"x", "y"}});
  const auto read = read_checkpoint(scratch / "w.safetensors", CheckpointParts::kModelOnly);
  EXPECT_TRUE(read.model.at("a").equal(torch::ones({2})));
  EXPECT_EQ(read.aliases, (std::map<std::string, std::string>{{"tied", "a"}}));
  EXPECT_HAS(checkpoint_error([&] { read_checkpoint(scratch / "w.safetensors"); }),
             "weights alone");
}

TEST(Checkpoint, NeverReadsOtherKindsOfFiles) {
  const ScratchDirectory scratch;
  write_bytes(scratch / "old.ckpt", "PK\3\4");
  const auto text =
      checkpoint_error([&] { read_checkpoint(scratch / "old.ckpt", CheckpointParts::kModelOnly); });
  EXPECT_HAS(text, ".ckpt");
  EXPECT_HAS(text, "never read");
}

TEST(Checkpoint, ReportsAFileInPlaceOfTheDirectory) {
  const ScratchDirectory scratch;
  write_bytes(scratch / "file", "x");
  const auto text = checkpoint_error([&] { write_checkpoint(scratch / "file" / "a", {}); });
  EXPECT_HAS(text, (scratch / "file").string());
  EXPECT_HAS(text, "Not a directory");
}

TEST(Checkpoint, ReportsAMissingWritePermission) {
  const ScratchDirectory scratch;
  write_checkpoint(scratch / "old", sample_contents(1));
  ASSERT_EQ(::chmod(scratch.path().c_str(), 0555), 0);
  torch::set_num_threads(1);
  const pid_t child = ::fork();
  if (child == 0) {
    // Permissions do not bind root.
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(77);
    int result = 1;
    try {
      write_checkpoint(scratch / "new", {});
    } catch (const CheckpointError& error) {
      const std::string text = error.what();
      result = text.find("Permission denied") != std::string::npos &&
                       text.find("choose another directory") != std::string::npos
                   ? 0
                   : 2;
    }
    ::_exit(result);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ::chmod(scratch.path().c_str(), 0755);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "root that may not change its user";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(entries_in(scratch.path()), 1u);
}

TEST(Checkpoint, ReportsAFullDiskAndKeepsTheOlderCheckpoint) {
  const ScratchDirectory scratch;
  if (::mount("tmpfs", scratch.path().c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "cannot mount a small tmpfs: " << std::strerror(errno);
  }
  const std::unique_ptr<const char, void (*)(const char*)> mounted(
      scratch.path().c_str(), [](const char* path) { ::umount(path); });
  write_checkpoint(scratch / "old", sample_contents(1));
  write_pointer(scratch.path(), "last", "old");
  CheckpointContents large = sample_contents(2);
  large.optimizer["large"] = torch::zeros({1 << 18});
  const auto text = checkpoint_error([&] { write_checkpoint(scratch / "new", large); });
  EXPECT_HAS(text, "No space left");
  EXPECT_HAS(text, "Free some disk space");
  EXPECT_HAS(text, "optimizer.safetensors");
  EXPECT_EQ(entries_in(scratch.path()), 2u);
  EXPECT_TRUE(same_contents(read_checkpoint(scratch / "last"), sample_contents(1)));
  write_checkpoint(scratch / "new", sample_contents(2));
}

}  // namespace
}  // namespace fulmen
