// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, over MPI. One MpiWorld a process, made before any other thread uses MPI and
// destroyed after every communicator that came from it.
#pragma once
#include <chrono>
#include <functional>
#include <memory>

#include "quatrain/comm/communicator.h"
#include "quatrain/comm/launch.h"

namespace quatrain {

class MpiEngine;

struct MpiOptions {
  // Asked in every wait (a flag that the signal handler sets): true ends the wait, unless the
  // operation is done within `grace`, with a CommError that says what was waited for. mpirun gives
  // the survivors of a killed rank one second between SIGTERM and SIGKILL.
  std::function<bool()> interrupted;
  std::chrono::milliseconds grace{200};
};

class MpiWorld {
 public:
  // Starts MPI. Throws ConfigError when MPI sees another job than `launch` does, or when this
  // build has no MPI.
  explicit MpiWorld(const Launch& launch, MpiOptions options = {});
  // Ends MPI, once every rank has come here; not so while an exception unwinds or messages are in
  // flight that nobody takes: then the process's own end tells the launcher.
  ~MpiWorld();
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;

  // The communicator of all ranks, "world". Backend "mpi".
  std::unique_ptr<Communicator> communicator();
  // As MPI counts them; they agree with the launcher's.
  const Launch& launch() const;
  // Ends the processes of all ranks with this exit code, at once. For a rank whose job has failed,
  // after it has said why.
  [[noreturn]] void end_job(int exit_code);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace quatrain
