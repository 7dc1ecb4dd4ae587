#include "fulmen/core/distributed/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "core/distributed/slurm_nodes.h"
#include "fulmen/core/support/error.h"

namespace fulmen {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<JobPlace> detect(const Variables& variables) {
  return detect_job([&](const std::string& name) -> std::optional<std::string> {
    const auto it = variables.find(name);
    return it == variables.end() ? std::nullopt : std::optional<std::string>(it->second);
  });
}

/// These with some changed; an empty value stands for one that is not there.
Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

/// The error that these variables are; empty if they are none.
std::string error_of(const Variables& variables) {
  try {
    detect(variables);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

void expect_error(const Variables& variables, const std::string& part) {
  const auto error = error_of(variables);
  EXPECT_NE(error.find(part), std::string::npos) << "expected: " << part << "\n  actual: " << error;
}

void expect_topology(const JobPlace& place, const Topology& expected) {
  EXPECT_EQ(place.topology.rank, expected.rank);
  EXPECT_EQ(place.topology.local_rank, expected.local_rank);
  EXPECT_EQ(place.topology.world_size, expected.world_size);
  EXPECT_EQ(place.topology.local_world_size, expected.local_world_size);
  EXPECT_EQ(place.topology.node_rank, expected.node_rank);
}

const Variables kPlain = {
    {"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "29400"}};
const Variables kTorchrun = with(kPlain,
                                 {{"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"GROUP_RANK", "1"},
                                  {"TORCHELASTIC_RUN_ID", "run"},
                                  {"TORCHELASTIC_RESTART_COUNT", "2"},
                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_NAMESPACE", "ns17"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_STEP_NUM_TASKS", "6"},
                          {"SLURM_STEP_NUM_NODES", "3"},
                          {"SLURM_STEP_ID", "2"},
                          {"SLURM_JOB_ID", "40123"},
                          {"SLURM_JOB_NODELIST", "a[1-4]"},
                          {"SLURM_STEP_NODELIST", "gpu[08-10]"}};

TEST(DetectJob, FindsNothingWithoutVariables) {
  EXPECT_FALSE(detect({}).has_value());
  EXPECT_FALSE(detect({{"MASTER_ADDR", "host"}, {"MASTER_PORT", "1"}}).has_value());
  EXPECT_FALSE(detect({{"LOCAL_RANK", "1"}}).has_value());
  EXPECT_FALSE(detect({{"RANK", ""}, {"WORLD_SIZE", ""}}).has_value());
}

TEST(DetectJob, ReadsTheVariablesOfTorchrun) {
  const auto place = detect(kTorchrun).value();
  EXPECT_EQ(place.method, LaunchMethod::kTorchrun);
  expect_topology(
      place, {.rank = 3, .local_rank = 1, .world_size = 4, .local_world_size = 2, .node_rank = 1});
  EXPECT_TRUE(place.hosts_known);
  EXPECT_EQ(place.master_addr, "10.0.0.7");
  EXPECT_EQ(place.master_port, 29400);
  EXPECT_TRUE(place.agent_serves_store);
  EXPECT_EQ(place.job_id, "run/2");
  const auto binds = detect(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}));
  EXPECT_FALSE(binds.value().agent_serves_store);
}

TEST(DetectJob, KnowsFulmenRunFromTorchrun) {
  const auto place = detect(with(kTorchrun, {{"FULMEN_STORE", "agent"}})).value();
  EXPECT_EQ(place.method, LaunchMethod::kRun);
  EXPECT_EQ(place.job_id, "run/2");
}

TEST(DetectJob, LeavesTheHostsOpenIfPlainVariablesDoNotTell) {
  const auto place = detect(kPlain).value();
  EXPECT_EQ(place.method, LaunchMethod::kVariables);
  EXPECT_FALSE(place.hosts_known);
  EXPECT_EQ(place.topology.local_rank, -1);
  EXPECT_FALSE(place.agent_serves_store);
  EXPECT_EQ(detect(with(kPlain, {{"LOCAL_RANK", "1"}})).value().topology.local_rank, 1);
}

TEST(DetectJob, TakesALoopbackAddressForOneHost) {
  for (const auto* address : {"127.0.0.1", "127.0.1.1", "localhost", "::1"}) {
    const auto place = detect(with(kPlain, {{"MASTER_ADDR", address}})).value();
    EXPECT_TRUE(place.hosts_known) << address;
    expect_topology(place, {.rank = 3, .local_rank = 3, .world_size = 4, .local_world_size = 4});
  }
}

TEST(DetectJob, KnowsItsOwnLauncherAlsoInsideAnotherOne) {
  const auto place = detect(with(kTorchrun, {{"FULMEN_LAUNCHED", "abc"}})).value();
  EXPECT_EQ(place.method, LaunchMethod::kSelf);
  EXPECT_EQ(place.job_id, "abc");
  EXPECT_FALSE(place.agent_serves_store);
}

TEST(DetectJob, NamesTheVariableThatIsMissing) {
  for (const auto* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    expect_error(with(kPlain, {{name, ""}}), std::string(name) + " is missing");
  }
  for (const auto& [name, value] : kOpenMpi) {
    if (name != "PMIX_NAMESPACE") expect_error(with(kOpenMpi, {{name, ""}}), name + " is missing");
  }
  expect_error(with(kOpenMpi, {{"MASTER_ADDR", "host"}}), "MASTER_PORT is missing");
  expect_error(with(kSlurm, {{"SLURM_LOCALID", ""}}), "SLURM_LOCALID is missing");
}

TEST(DetectJob, NamesTheVariableThatHasNoValidValue) {
  expect_error(with(kPlain, {{"RANK", "two"}}), "RANK must be a number from 0 up, got \"two\"");
  expect_error(with(kPlain, {{"RANK", "-1"}}), "RANK must be");
  expect_error(with(kPlain, {{"RANK", "1.5"}}), "RANK must be");
  expect_error(with(kPlain, {{"RANK", " 1"}}), "RANK must be");
  expect_error(with(kPlain, {{"RANK", "99999999999"}}), "RANK must be");
  expect_error(with(kPlain, {{"RANK", "4"}}), "RANK must be less than WORLD_SIZE, which is 4");
  expect_error(with(kPlain, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE must be a number from 1 up");
  expect_error(with(kPlain, {{"MASTER_PORT", "0"}}),
               "MASTER_PORT must be a number from 1 to 65535");
  expect_error(with(kPlain, {{"MASTER_PORT", "65536"}}), "got \"65536\"");
  expect_error(with(kTorchrun, {{"LOCAL_RANK", "2"}}), "LOCAL_RANK must be less than");
  expect_error(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "2"}}),
               "OMPI_COMM_WORLD_RANK must be less");
}

TEST(DetectJob, ReadsOpenMpiOnOneHostWithoutAnAddress) {
  const auto place = detect(kOpenMpi).value();
  EXPECT_EQ(place.method, LaunchMethod::kOpenMpi);
  expect_topology(place, {.rank = 1, .local_rank = 1, .world_size = 2, .local_world_size = 2});
  EXPECT_EQ(place.master_addr, "");
  EXPECT_EQ(place.job_id, "ns17");
}

TEST(DetectJob, NeedsAnAddressForOpenMpiOnSeveralHosts) {
  const auto two_hosts =
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  expect_error(two_hosts, "MASTER_ADDR is missing");
  expect_error(two_hosts, "MASTER_PORT");
  const auto place = detect(with(two_hosts, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "7"}})).value();
  EXPECT_EQ(place.topology.node_rank, 1);
  EXPECT_EQ(place.master_addr, "a");
  EXPECT_EQ(place.master_port, 7);
}

TEST(DetectJob, ReadsASlurmStep) {
  const auto place = detect(kSlurm).value();
  EXPECT_EQ(place.method, LaunchMethod::kSlurm);
  expect_topology(
      place, {.rank = 5, .local_rank = 1, .world_size = 6, .local_world_size = 2, .node_rank = 2});
  EXPECT_EQ(place.master_addr, "gpu08");
  EXPECT_EQ(place.master_port, 10000 + (40123 + 2 * 997) % 20000);
  EXPECT_EQ(place.job_id, "40123.2");
  const auto given =
      detect(with(kSlurm, {{"MASTER_ADDR", "login"}, {"MASTER_PORT", "29500"}})).value();
  EXPECT_EQ(given.master_addr, "login");
  EXPECT_EQ(given.master_port, 29500);
  EXPECT_EQ(detect(with(kSlurm, {{"SLURM_STEP_NUM_NODES", "1"}})).value().master_addr, "127.0.0.1");
}

TEST(DetectJob, IgnoresSlurmInShellsAndBatchScripts) {
  EXPECT_FALSE(detect(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}})).has_value());
  EXPECT_FALSE(
      detect(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", ""}, {"SLURM_NTASKS", "1"}})).has_value());
  // A batch script has no step; a shell of salloc has step -6.
  const auto batch = with(kSlurm, {{"SLURM_STEP_NUM_TASKS", ""}, {"SLURM_STEP_ID", ""}});
  EXPECT_FALSE(detect(batch).has_value());
  EXPECT_FALSE(detect(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}})).has_value());
  const auto no_step = with(kSlurm, {{"SLURM_STEP_ID", ""}});
  for (const auto* name : {"interactive", "bash"})
    EXPECT_FALSE(detect(with(no_step, {{"SLURM_JOB_NAME", name}})).has_value()) << name;
  // What srun starts from such a shell is a rank.
  EXPECT_TRUE(detect(with(kSlurm, {{"SLURM_JOB_NAME", "bash"}})).has_value());
  EXPECT_FALSE(detect(with(kSlurm, {{"SLURM_PROCID", ""}})).has_value());
}

TEST(DetectJob, DoesNotGuessInASlurmTerminalOfSeveralTasks) {
  expect_error(with(kSlurm, {{"SLURM_PTY_PORT", "4000"}}), "unset SLURM_PTY_PORT");
  const Variables one_task = {{"SLURM_PTY_PORT", "4000"}, {"SLURM_STEP_NUM_TASKS", "1"}};
  EXPECT_FALSE(detect(with(kSlurm, one_task)).has_value());
}

TEST(DetectJob, ReadsPmiWithAnAddress) {
  const Variables pmi = {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}};
  expect_error(pmi, "MASTER_ADDR is missing");
  expect_error({{"PMI_RANK", "1"}}, "PMI_SIZE is missing");
  EXPECT_FALSE(detect({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}).has_value());
  const auto place = detect(with(pmi,
                                 {{"MASTER_ADDR", "a"},
                                  {"MASTER_PORT", "7"},
                                  {"MPI_LOCALRANKID", "1"},
                                  {"MPI_LOCALNRANKS", "2"}}));
  EXPECT_EQ(place.value().method, LaunchMethod::kPmi);
  expect_topology(*place, {.rank = 1, .local_rank = 1, .world_size = 2, .local_world_size = 2});
}

TEST(DetectJob, PrefersRankVariablesThenOpenMpiThenSlurm) {
  auto all = kSlurm;
  all.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(detect(all).value().method, LaunchMethod::kOpenMpi);
  all.insert(kPlain.begin(), kPlain.end());
  EXPECT_EQ(detect(all).value().method, LaunchMethod::kVariables);
  // A partial set does not fall through to the next.
  all.erase("MASTER_ADDR");
  expect_error(all, "MASTER_ADDR is missing");
}

TEST(FirstSlurmNode, ExpandsTheFirstName) {
  EXPECT_EQ(detail::first_slurm_node("node1"), "node1");
  EXPECT_EQ(detail::first_slurm_node("x3,node[01-04,7]"), "x3");
  EXPECT_EQ(detail::first_slurm_node("node[01-04,7],x3"), "node01");
  EXPECT_EQ(detail::first_slurm_node("node[7,01-04]"), "node7");
  EXPECT_EQ(detail::first_slurm_node("rack[2-3]n[10-12].cluster,y"), "rack2n10.cluster");
  for (const auto* torn : {"", ",a", "node[", "node[01", "node[]", "node[,1]"})
    EXPECT_THROW(detail::first_slurm_node(torn), ConfigError) << torn;
}

}  // namespace
}  // namespace fulmen
