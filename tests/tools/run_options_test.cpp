#include "tools/run/run_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <sstream>

#include "fulmen/core/support/error.h"

namespace fulmen::detail {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::optional<RunOptions> parse(std::vector<std::string> arguments, std::ostream& out) {
  std::vector<const char*> pointers = {"fulmen-run"};
  for (const auto& argument : arguments) pointers.push_back(argument.c_str());
  return parse_command_line(static_cast<int>(pointers.size()), pointers.data(), out);
}

RunOptions parse(std::vector<std::string> arguments) {
  std::ostringstream out;
  return parse(std::move(arguments), out).value();
}

std::string refusal(std::vector<std::string> arguments) {
  try {
    parse(std::move(arguments));
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(RunOptions, TakeBothSpellingsAndStopAtTheProgram) {
  for (const char c : {'-', '_'}) {
    const auto flag = [c](std::string name) {
      std::replace(name.begin() + 2, name.end(), '-', c);
      return name;
    };
    const auto options = parse({flag("--nproc-per-node"),
                                "3",
                                "--nnodes=1:4",
                                flag("--rdzv-endpoint") + "=node-a:1234",
                                flag("--max-restarts"),
                                "5",
                                flag("--rdzv-id"),
                                "job",
                                flag("--node-rank"),
                                "3",
                                "/bin/sh",
                                "--nnodes",
                                "9",
                                "-c",
                                "--",
                                ""});
    EXPECT_EQ(options.ranks, 3);
    EXPECT_EQ(options.min_nodes, 1);
    EXPECT_EQ(options.max_nodes, 4);
    EXPECT_EQ(options.endpoint.host, "node-a");
    EXPECT_EQ(options.endpoint.port, 1234);
    EXPECT_EQ(options.max_restarts, 5);
    EXPECT_EQ(options.job_id, "job");
    EXPECT_EQ(options.node_rank, 3);
    EXPECT_THAT(options.command, ElementsAre("/bin/sh", "--nnodes", "9", "-c", "--", ""));
  }
  EXPECT_THAT(parse({"--", "sh", "-c"}).command, ElementsAre(testing::EndsWith("/sh"), "-c"));
}

TEST(RunOptions, ReadEndpoints) {
  const auto read = [](const std::string& text) {
    return parse({"--nnodes", "2", "--rdzv-endpoint", text, "/bin/sh"}).endpoint;
  };
  EXPECT_EQ(read("a:1").text(), "a:1");
  EXPECT_EQ(read("a").text(), "a:29400");
  EXPECT_EQ(read("[::1]:65535").text(), "[::1]:65535");
  EXPECT_EQ(read("[fe80::1%eth0]").host, "fe80::1%eth0");
  EXPECT_EQ(read("::1").text(), "[::1]:29400");
  for (const auto* bad : {"a:", ":1", "a:0", "a:65536", "a:b", "[::1", "[::1]x", "[::1]:", "a b"}) {
    const auto text = refusal({"--nnodes", "2", "--rdzv-endpoint", bad, "/bin/sh"});
    EXPECT_THAT(text, HasSubstr("--rdzv-endpoint: got \"" + std::string(bad) + "\"; ")) << bad;
  }
}

TEST(RunOptions, NameFlagValueAndRemedy) {
  const auto expect = [](std::vector<std::string> arguments, const std::string& part) {
    arguments.emplace_back("/bin/sh");
    EXPECT_THAT(refusal(arguments), HasSubstr(part));
  };
  expect({"--nnodes", "3:1"}, "--nnodes: got \"3:1\"; give N or MIN:MAX");
  expect({"--nnodes", "0"}, "--nnodes: got \"0\"");
  expect({"--nnodes", "1:2:3"}, "--nnodes: got \"1:2:3\"");
  expect({"--nproc-per-node", "two"}, "--nproc-per-node: got \"two\"; give a number from 1 to");
  expect({"--nproc-per-node", "-1"}, "--nproc-per-node: got \"-1\"");
  expect({"--max-restarts", "-1"}, "--max-restarts: got \"-1\"; give a number from 0");
  expect({"--nnodes", "2"}, "--rdzv-endpoint: is missing, but --nnodes is 2");
  expect({"--nnodes", "2", "--standalone"}, "--standalone: is for one node, but --nnodes is 2");
  expect({"--nnodes", "2", "--rdzv-endpoint", "a", "--node-rank", "2"},
         "--node-rank: got \"2\"; give a number from 0 to 1");
  expect({"--rdzv-backend", "etcd"}, "--rdzv-backend: got \"etcd\"; there is c10d");
  expect({"--rdzv-conf", "x=1"}, "--rdzv-conf: got \"x=1\"; give key=value");
  expect({"--rdzv-conf", "join_timeout=soon"}, "--rdzv-conf join_timeout: got \"soon\"");
  expect({"--tee", "3"}, "--tee: got \"3\"; there is no folder for the files: give --log-dir");
  expect({"--redirects", "4", "--log-dir", "x"}, "--redirects: got \"4\"; give 0");
  expect({"--monitor-interval", "x"}, "--monitor-interval: got \"x\"; give seconds");
  expect({"--nnode", "2"}, "--nnode: is not a flag of fulmen-run");
  EXPECT_THAT(refusal({"--nnodes"}), HasSubstr("--nnodes"));
  EXPECT_THAT(refusal({}), HasSubstr("The program: is missing"));
  EXPECT_THAT(refusal({"no-such-program"}), HasSubstr("\"no-such-program\" is not an executable"));
  EXPECT_THAT(refusal({"/etc/passwd"}), HasSubstr("\"/etc/passwd\" is not an executable file"));
}

TEST(RunOptions, SendStreamsWhereTheyAreAskedFor) {
  const auto plain = parse({"/bin/sh"});
  EXPECT_TRUE(plain.to_terminal.output && plain.to_terminal.errors);
  EXPECT_FALSE(plain.to_files.output || plain.to_files.errors);
  const auto both = parse({"--log-dir", "x", "/bin/sh"});
  EXPECT_TRUE(both.to_terminal.output && both.to_terminal.errors);
  EXPECT_TRUE(both.to_files.output && both.to_files.errors);
  EXPECT_TRUE(both.log_dir.is_absolute());
  const auto quiet = parse({"--log-dir", "x", "-r", "1", "/bin/sh"});
  EXPECT_TRUE(!quiet.to_terminal.output && quiet.to_terminal.errors);
  EXPECT_TRUE(quiet.to_files.output && quiet.to_files.errors);
}

TEST(RunOptions, ReadTorchrunsVariables) {
  ::setenv("PET_NPROC_PER_NODE", "7", 1);
  const auto options = parse({"/bin/sh"});
  const auto given = parse({"--nproc-per-node", "2", "/bin/sh"});
  ::unsetenv("PET_NPROC_PER_NODE");
  EXPECT_EQ(options.ranks, 7);
  EXPECT_EQ(given.ranks, 2);
}

TEST(RunOptions, PrintHelpWithAllFlags) {
  std::ostringstream out;
  EXPECT_FALSE(parse({"--help"}, out).has_value());
  for (const auto* flag : {"--nnodes", "--nproc-per-node", "--rdzv-endpoint", "--token-file"})
    EXPECT_THAT(out.str(), HasSubstr(flag));
}

}  // namespace
}  // namespace fulmen::detail
