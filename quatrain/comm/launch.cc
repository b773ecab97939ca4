// SPDX-License-Identifier: Apache-2.0
// One table of variables, a row a launcher; reading and comparing know no launcher by name.
#include "quatrain/comm/launch.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <utility>
#include <vector>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

struct Variables {
  Launcher launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  const char* local_size;
};

// The order is the preference. SLURM_NTASKS_PER_NODE is not a local size: it is what was asked for.
constexpr std::array<Variables, 4> kTable = {{
    {Launcher::kOpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {Launcher::kMpich, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {Launcher::kSlurm, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr},
    {Launcher::kTorchrun, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
}};

std::optional<int> read(const Environment& environment, const char* variable) {
  const std::optional<std::string> text =
      variable == nullptr ? std::nullopt : environment(variable);
  if (!text) return std::nullopt;
  int value = 0;
  const char* end = text->data() + text->size();
  const auto [last, error] = std::from_chars(text->data(), end, value);
  if (error != std::errc() || last != end || value < 0) {
    throw ConfigError(
        fmt::format("{} = \"{}\" is not a rank or a number of ranks", variable, *text));
  }
  return value;
}

void check_range(const char* rank_name, int rank, const char* size_name, int size) {
  if (rank < size) return;
  throw ConfigError(fmt::format("{} = {} is outside {} = {}: ranks count from 0", rank_name, rank,
                                size_name, size));
}

// "2(x3),1": the tasks of each node, in the order of nodes.
std::optional<int> tasks_on_node(const std::string& list, int node) {
  const char* at = list.data();
  const char* end = at + list.size();
  while (at < end) {
    int tasks = 0;
    int nodes = 1;
    auto parsed = std::from_chars(at, end, tasks);
    if (parsed.ec != std::errc()) return std::nullopt;
    at = parsed.ptr;
    if (std::string_view(at, end).starts_with("(x")) {
      parsed = std::from_chars(at + 2, end, nodes);
      if (parsed.ec != std::errc() || parsed.ptr == end) return std::nullopt;
      at = parsed.ptr + 1;  // ")"
    }
    if (node < nodes) return tasks;
    node -= nodes;
    if (at < end) ++at;  // ","
  }
  return std::nullopt;
}

std::optional<int> slurm_local_size(const Environment& environment) {
  const std::optional<int> node = read(environment, "SLURM_NODEID");
  for (const char* variable : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const std::optional<std::string> list = environment(variable);
    if (list && node) return tasks_on_node(*list, *node);
  }
  return std::nullopt;
}

// A launcher that says nothing of hosts has put every rank on this one.
Launch with_locals(const Variables& names, const Environment& environment, Launch launch) {
  std::optional<int> local_size = read(environment, names.local_size);
  if (launch.launcher == Launcher::kSlurm) local_size = slurm_local_size(environment);
  const std::optional<int> local_rank = read(environment, names.local_rank);
  launch.local_rank = local_rank.value_or(launch.rank);
  launch.local_size = local_size.value_or(launch.size);
  if (local_rank) {
    check_range(names.local_rank, *local_rank,
                local_size && names.local_size ? names.local_size : names.size, launch.local_size);
  }
  return launch;
}

std::optional<Launch> read_launch(const Variables& names, const Environment& environment) {
  const std::optional<int> rank = read(environment, names.rank);
  const std::optional<int> size = read(environment, names.size);
  // A batch script has SLURM_NTASKS without being a task.
  if (!rank && (!size || names.launcher == Launcher::kSlurm)) return std::nullopt;
  if (!rank || !size) {
    const char* there = rank ? names.rank : names.size;
    const char* missing = rank ? names.size : names.rank;
    throw ConfigError(fmt::format("{} = {} without {}: set both, or unset it to run without {}",
                                  there, rank ? *rank : *size, missing, name(names.launcher)));
  }
  check_range(names.rank, *rank, names.size, *size);
  return with_locals(names, environment,
                     {.launcher = names.launcher, .rank = *rank, .size = *size});
}

struct Source {
  const Variables* names;
  Launch launch;
};

void check_same(const char* name_a, int a, const char* name_b, int b, Launcher other) {
  if (a == b) return;
  throw ConfigError(fmt::format(
      "{} = {} but {} = {}: two launchers disagree about this process; unset {}'s variables or "
      "start it with one launcher only",
      name_a, a, name_b, b, name(other)));
}

void check_agreement(const Source& a, const Source& b, const Environment& environment) {
  const Launcher other = b.launch.launcher;
  check_same(a.names->rank, a.launch.rank, b.names->rank, b.launch.rank, other);
  check_same(a.names->size, a.launch.size, b.names->size, b.launch.size, other);
  const std::optional<int> local_a = read(environment, a.names->local_rank);
  const std::optional<int> local_b = read(environment, b.names->local_rank);
  if (local_a && local_b) {
    check_same(a.names->local_rank, *local_a, b.names->local_rank, *local_b, other);
  }
}

bool is_mpi(Launcher launcher) {
  return launcher == Launcher::kOpenMpi || launcher == Launcher::kMpich;
}

}  // namespace

std::string_view name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "none";
    case Launcher::kOpenMpi:
      return "Open MPI";
    case Launcher::kMpich:
      return "MPICH";
    case Launcher::kSlurm:
      return "Slurm";
    case Launcher::kTorchrun:
      return "torchrun";
  }
  return "unknown";
}

std::optional<std::string> process_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Launch discover_launch(const Environment& environment) {
  std::vector<Source> sources;
  const bool slurm_job = environment("SLURM_JOB_ID").has_value();
  for (const Variables& names : kTable) {
    const bool mpi_found = !sources.empty() && is_mpi(sources.front().launch.launcher);
    if (names.launcher == Launcher::kSlurm && slurm_job && mpi_found) continue;
    if (const std::optional<Launch> launch = read_launch(names, environment)) {
      sources.push_back({&names, *launch});
    }
  }
  if (sources.empty()) return {};
  for (std::size_t i = 1; i < sources.size(); ++i) {
    check_agreement(sources.front(), sources[i], environment);
  }
  return sources.front().launch;
}

void refuse_torchrun_on_cpus(const Launch& launch, std::string_view command_line) {
  if (launch.launcher != Launcher::kTorchrun) return;
  throw ConfigError(fmt::format(
      "RANK = {} and WORLD_SIZE = {} are torchrun's: they serve the nccl backend, which needs "
      "GPUs. On CPUs type: mpirun -n {} {}",
      launch.rank, launch.size, launch.size, command_line));
}

void check_mpi_agrees(const Launch& launch, int mpi_rank, int mpi_size) {
  if (launch.launcher == Launcher::kNone) return;
  if (launch.rank == mpi_rank && launch.size == mpi_size) return;
  const std::string_view launcher = name(launch.launcher);
  if (mpi_size == 1) {
    throw ConfigError(fmt::format(
        "{} processes, all rank 0: {} started {}, but MPI sees one process in each. Start them "
        "with the mpirun of the MPI that this binary was built with ({})",
        launch.size, launcher, launch.size,
        launch.launcher == Launcher::kSlurm ? "or srun --mpi=pmix" : "check: which mpirun"));
  }
  throw ConfigError(
      fmt::format("{} says rank {} of {}, MPI says rank {} of {}: start the job with one launcher",
                  launcher, launch.rank, launch.size, mpi_rank, mpi_size));
}

}  // namespace quatrain
