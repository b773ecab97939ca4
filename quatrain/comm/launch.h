// SPDX-License-Identifier: Apache-2.0
// Who started this process, and which rank it is: read from the variables that launchers set
// (Open MPI's mpirun, MPICH's hydra, Slurm's srun, torchrun). A pure function of an environment, so
// that a test can be any launcher. Nothing set: no launcher, the ranks are threads of this process.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace quatrain {

enum class Launcher { kNone, kOpenMpi, kMpich, kSlurm, kTorchrun };
std::string_view name(Launcher launcher);  // "none", "Open MPI", "MPICH", "Slurm", "torchrun"

struct Launch {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the processes of this host
  int local_size = 1;
  friend bool operator==(const Launch&, const Launch&) = default;
};

using Environment = std::function<std::optional<std::string>(const char* variable)>;
std::optional<std::string> process_environment(const char* variable);

// The first of the launchers above that is there. Inside a Slurm job an MPI launcher's variables
// speak of the process and Slurm's of the task that started it, so Slurm's are not read then.
// Throws ConfigError when two sources disagree (naming the variables and both values), when a
// variable is not a number or out of range, or when a rank comes without a size.
Launch discover_launch(const Environment& environment);

// Refuses torchrun's variables where there is no GPU, with the mpirun line to type instead.
void refuse_torchrun_on_cpus(const Launch& launch, std::string_view command_line);

// After MPI's start: throws ConfigError when MPI sees another job than the launcher made ("4
// processes, all rank 0": the binary was started by the mpirun of another MPI).
void check_mpi_agrees(const Launch& launch, int mpi_rank, int mpi_size);

}  // namespace quatrain
