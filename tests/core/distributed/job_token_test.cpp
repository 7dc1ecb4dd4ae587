#include "core/distributed/job_token.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <map>

#include "fulmen/core/support/error.h"
#include "tests/core/distributed/error_text.h"
#include "tests/support/run_program.h"

namespace fulmen::detail {
namespace {

using fulmen::testing::error_text;
using fulmen::testing::expect_parts;

const std::string kSecret = "correct horse battery staple";

std::vector<std::uint8_t> bytes(std::string_view text) {
  return {text.begin(), text.end()};
}

std::string hex(const JobToken::Answer& answer) {
  std::string text;
  for (const auto byte : answer) {
    for (const int digit : {byte >> 4, byte & 15})
      text += "0123456789abcdef"[static_cast<std::size_t>(digit)];
  }
  return text;
}

class JobTokenFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text, mode_t mode = 0600) const {
    auto file = folder_.path() / "token";
    std::filesystem::remove(file);
    std::ofstream(file) << text;
    EXPECT_EQ(::chmod(file.c_str(), mode), 0);
    return file;
  }
  static std::string error_of(const std::filesystem::path& file) {
    return error_text<ConfigError>([&] { JobToken::from_file(file); });
  }
  TemporaryFolder folder_;
};

TEST(JobToken, AnswersAsRfc4231Says) {
  const auto token = JobToken::from_text(std::string(20, '\x0b'), "test");
  EXPECT_EQ(hex(token->answer(bytes("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
}

TEST(JobToken, AcceptsItsOwnAnswerAndNoneThatDiffersInOneBit) {
  const auto token = JobToken::from_text(kSecret, "test");
  const auto challenge = bytes("challenge");
  auto answer = token->answer(challenge);
  EXPECT_TRUE(token->accepts(challenge, answer));
  EXPECT_FALSE(token->accepts(bytes("challengf"), answer));
  EXPECT_FALSE(JobToken::from_text(kSecret + "x", "test")->accepts(challenge, answer));
  for (std::size_t bit = 0; bit < 8 * answer.size(); ++bit) {
    answer[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    EXPECT_FALSE(token->accepts(challenge, answer)) << "bit " << bit;
    answer[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
  }
}

TEST(JobToken, HasFrom16To4096BytesWithoutNewlinesAtItsEnd) {
  const auto make = [](const std::string& text) { return JobToken::from_text(text, "FULMEN_X"); };
  EXPECT_NE(make(std::string(16, 'x')), nullptr);
  EXPECT_NE(make(std::string(4096, 'x') + "\r\n"), nullptr);
  const auto answer = make(kSecret)->answer(bytes("c"));
  EXPECT_EQ(make(kSecret + "\n")->answer(bytes("c")), answer);
  EXPECT_NE(make(kSecret + " ")->answer(bytes("c")), answer);
  for (const auto size : {0, 15, 4097}) {
    const auto text = error_text<ConfigError>([&] { make(std::string(size, 'q') + "\n"); });
    expect_parts(text, {"FULMEN_X", "16 to 4096"});
    EXPECT_EQ(text.find("qqq"), std::string::npos) << "the secret is in: " << text;
  }
}

TEST_F(JobTokenFile, IsReadWithoutItsNewline) {
  const auto token = JobToken::from_file(write(kSecret + "\n"));
  EXPECT_EQ(token->answer(bytes("c")), JobToken::from_text(kSecret, "test")->answer(bytes("c")));
  EXPECT_NE(JobToken::from_file(write(std::string(4096, 'x') + "\n")), nullptr);
}

TEST_F(JobTokenFile, IsRefusedUnlessItHoldsAToken) {
  expect_parts(error_of(write("")), {"token", "16 to 4096", "got 0"});
  expect_parts(error_of(write("short")), {"16 to 4096", "got 5"});
  expect_parts(error_of(write(std::string(4097, 'x'))), {"16 to 4096", "got more"});
  expect_parts(error_of(write(std::string(1 << 20, 'x'))), {"16 to 4096", "got more"});
  expect_parts(error_of(folder_.path() / "none"), {"none", "cannot be read", "No such file"});
}

TEST_F(JobTokenFile, IsRefusedIfOthersCanReadOrWriteIt) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0644, 0666})
    expect_parts(error_of(write(kSecret, mode)), {"others than its owner", "chmod 600"});
  EXPECT_NO_THROW(JobToken::from_file(write(kSecret, 0400)));
}

TEST_F(JobTokenFile, IsRefusedAtOnceIfItIsAPipeOrAFolder) {
  const auto pipe = folder_.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  expect_parts(error_of(pipe), {"no regular file"});  // And this test does not hang.
  expect_parts(error_of(folder_.path()), {"no regular file"});
}

TEST_F(JobTokenFile, CountsBeforeTheVariable) {
  const auto find = [](std::map<std::string, std::string> variables) {
    return JobToken::find([=](const std::string& name) -> std::optional<std::string> {
      const auto it = variables.find(name);
      return it == variables.end() ? std::nullopt : std::optional(it->second);
    });
  };
  const auto file = write(kSecret).string();
  const std::string other = "another secret of some bytes";
  const auto answer = [](const auto& token) { return token->answer(bytes("c")); };
  EXPECT_EQ(find({}), nullptr);
  EXPECT_EQ(find({{"FULMEN_TOKEN", ""}, {"FULMEN_TOKEN_FILE", ""}}), nullptr);
  const auto of_file = answer(JobToken::from_file(file));
  EXPECT_EQ(answer(find({{"FULMEN_TOKEN_FILE", file}, {"FULMEN_TOKEN", other}})), of_file);
  EXPECT_EQ(answer(find({{"FULMEN_TOKEN", kSecret}})), of_file);
  EXPECT_NE(answer(find({{"FULMEN_TOKEN", other}})), of_file);
  // One that is wrong is no reason to go on with another one, or none.
  EXPECT_THROW(find({{"FULMEN_TOKEN_FILE", file + "x"}, {"FULMEN_TOKEN", other}}), ConfigError);
  EXPECT_THROW(find({{"FULMEN_TOKEN", "short"}}), ConfigError);
}

}  // namespace
}  // namespace fulmen::detail
