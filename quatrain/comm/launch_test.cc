// SPDX-License-Identifier: Apache-2.0
// Environments of each launcher as they were seen, and what is made of them.
#include "quatrain/comm/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Variables = std::map<std::string, std::string>;

Launch discover(const Variables& variables) {
  return discover_launch([&](const char* variable) -> std::optional<std::string> {
    const auto found = variables.find(variable);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

Variables join(Variables a, const Variables& b) {
  a.insert(b.begin(), b.end());
  return a;
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                            {"OMPI_COMM_WORLD_SIZE", "8"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_RANK", "5"}};
const Variables kHydra = {{"PMI_RANK", "5"},
                          {"PMI_SIZE", "8"},
                          {"PMI_FD", "9"},
                          {"MPI_LOCALRANKID", "1"},
                          {"MPI_LOCALNRANKS", "4"}};
const Variables kSlurm = {{"SLURM_PROCID", "5"},
                          {"SLURM_NTASKS", "8"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_TASKS_PER_NODE", "4(x2)"},
                          {"SLURM_JOB_ID", "77"}};
const Variables kTorchrun = {
    {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "4"}};
const Variables kBatchScript = {{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "8"}};

Launch rank_5_of_8(Launcher launcher) {
  return {.launcher = launcher, .rank = 5, .size = 8, .local_rank = 1, .local_size = 4};
}

TEST(Launch, EachLauncherIsFound) {
  struct Row {
    Variables variables;
    Launch expected;
  };
  const std::vector<Row> rows = {
      {{}, {}},
      {{{"PMIX_RANK", "3"}}, {}},  // a rank without a size of its own: set beside others' only
      {kBatchScript, {}},
      {kOpenMpi, rank_5_of_8(Launcher::kOpenMpi)},
      {kHydra, rank_5_of_8(Launcher::kMpich)},
      {kSlurm, rank_5_of_8(Launcher::kSlurm)},
      {kTorchrun, rank_5_of_8(Launcher::kTorchrun)},
      {join(kOpenMpi, kTorchrun), rank_5_of_8(Launcher::kOpenMpi)},
      {join(kSlurm, kTorchrun), rank_5_of_8(Launcher::kSlurm)},
      {{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}},
       {.launcher = Launcher::kMpich, .rank = 1, .size = 2, .local_rank = 1, .local_size = 2}},
  };
  for (const Row& row : rows) EXPECT_EQ(discover(row.variables), row.expected);
}

TEST(Launch, TasksOfUnevenNodes) {
  Variables slurm = kSlurm;
  slurm["SLURM_TASKS_PER_NODE"] = "3,2(x2),1";
  slurm["SLURM_NODEID"] = "0";
  EXPECT_EQ(discover(slurm).local_size, 3);
  slurm["SLURM_NODEID"] = "2";
  EXPECT_EQ(discover(slurm).local_size, 2);
  slurm["SLURM_TASKS_PER_NODE"] = "nonsense";
  EXPECT_EQ(discover(slurm).local_size, 8);
}

// mpirun in a batch job: every process inherits the variables of the task that runs the daemon.
TEST(Launch, MpirunInsideASlurmJobIsNotAConflict) {
  Variables daemon = kSlurm;
  daemon["SLURM_PROCID"] = "0";
  daemon["SLURM_NTASKS"] = "2";
  EXPECT_EQ(discover(join(kOpenMpi, daemon)), rank_5_of_8(Launcher::kOpenMpi));
  EXPECT_EQ(discover(join(kHydra, daemon)), rank_5_of_8(Launcher::kMpich));
}

TEST(Launch, DisagreementNamesBothVariables) {
  Variables torchrun = kTorchrun;
  torchrun["RANK"] = "3";
  EXPECT_THAT([&] { discover(join(kOpenMpi, torchrun)); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("OMPI_COMM_WORLD_RANK = 5 but RANK = 3"),
                                               HasSubstr("unset torchrun's"))));
  EXPECT_THAT(
      [&] {
        discover(join(kSlurm, {{"PMI_RANK", "5"}, {"PMI_SIZE", "4"}}));
      },
      ThrowsMessage<ConfigError>(HasSubstr("PMI_RANK = 5 is outside PMI_SIZE = 4")));
  const Variables tasks = {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "16"}};
  EXPECT_THAT(
      [&] { discover(join(kOpenMpi, tasks)); },
      ThrowsMessage<ConfigError>(HasSubstr("OMPI_COMM_WORLD_SIZE = 8 but SLURM_NTASKS = 16")));
}

TEST(Launch, HalfASourceOrNoNumberIsRefused) {
  EXPECT_THAT(
      [] {
        discover({{"WORLD_SIZE", "4"}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("WORLD_SIZE = 4 without RANK")));
  EXPECT_THAT(
      [] {
        discover({{"SLURM_PROCID", "0"}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("SLURM_PROCID = 0 without SLURM_NTASKS")));
  for (const char* bad : {"", "x", "-1", "2x", "99999999999"}) {
    EXPECT_THAT(
        [&] {
          discover({{"PMI_RANK", bad}, {"PMI_SIZE", "2"}});
        },
        ThrowsMessage<ConfigError>(HasSubstr("PMI_RANK = \"")));
  }
}

TEST(Launch, TorchrunOnCpusIsTheMpirunLineToType) {
  EXPECT_THAT([] { refuse_torchrun_on_cpus(discover(kTorchrun), "quatrain train a.toml"); },
              ThrowsMessage<ConfigError>(HasSubstr("type: mpirun -n 8 quatrain train a.toml")));
  EXPECT_NO_THROW(refuse_torchrun_on_cpus(discover(join(kOpenMpi, kTorchrun)), "quatrain"));
  EXPECT_NO_THROW(refuse_torchrun_on_cpus({}, "quatrain"));
}

// Eight tasks a node, node ranks taken from elsewhere: the variable that clashes is named.
TEST(Launch, case_139_NodeRanksThatClashAreNamed) {
  const Variables srun = {{"SLURM_PROCID", "11"},  {"SLURM_NTASKS", "16"},
                          {"SLURM_LOCALID", "3"},  {"SLURM_NODEID", "1"},
                          {"SLURM_NNODES", "2"},   {"SLURM_STEP_TASKS_PER_NODE", "8(x2)"},
                          {"SLURM_JOB_ID", "1234"}};
  EXPECT_EQ(discover(srun), (Launch{Launcher::kSlurm, 11, 16, 3, 8}));
  const Variables clash = {{"RANK", "11"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "0"}};
  EXPECT_THAT([&] { discover(join(srun, clash)); },
              ThrowsMessage<ConfigError>(HasSubstr("SLURM_LOCALID = 3 but LOCAL_RANK = 0")));
  Variables outside = srun;
  outside["SLURM_LOCALID"] = "8";
  EXPECT_THAT([&] { discover(outside); },
              ThrowsMessage<ConfigError>(HasSubstr("SLURM_LOCALID = 8 is outside")));
}

TEST(Launch, case_140_ProcessesThatAreAllRankZeroAreRefused) {
  EXPECT_THAT([] { check_mpi_agrees(discover(kHydra), 0, 1); },
              ThrowsMessage<ConfigError>(
                  AllOf(HasSubstr("8 processes, all rank 0"), HasSubstr("MPICH started 8"))));
  EXPECT_THAT([] { check_mpi_agrees(discover(kSlurm), 0, 1); },
              ThrowsMessage<ConfigError>(HasSubstr("srun --mpi=pmix")));
  EXPECT_THAT([] { check_mpi_agrees(discover(kOpenMpi), 4, 8); },
              ThrowsMessage<ConfigError>(HasSubstr("rank 5 of 8, MPI says rank 4 of 8")));
  EXPECT_NO_THROW(check_mpi_agrees(discover(kOpenMpi), 5, 8));
  EXPECT_NO_THROW(check_mpi_agrees({}, 0, 1));
}

}  // namespace
}  // namespace quatrain
