// SPDX-License-Identifier: Apache-2.0
// See ranks.h.
#include "apps/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "apps/failures.h"
#include "apps/fault.h"
#include "apps/guard.h"
#include "apps/signals.h"
#include "quatrain/base/error.h"
#include "quatrain/comm/checked.h"
#include "quatrain/comm/mpi/mpi.h"
#include "quatrain/comm/self/self.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/comm/watched.h"

namespace quatrain::apps {
namespace {

int ranks_of(const RunConfig& config) {
  const auto& p = config.parallel;
  return p.dp_replicate * p.dp_shard * p.tp * p.pp * p.cp;
}

class Job {
 public:
  Job(const RunConfig& config, const std::function<int(Rank&)>& body)
      : config_(config), faults_(parse_fault(config.debug.fault, ranks_of(config))), body_(body) {}

  int rank(std::unique_ptr<Communicator> world, int ranks_here, std::span<WaitBoard> boards) {
    CommCounts counts;
    WatchOptions watch;
    watch.timeout = Seconds{config_.comm.timeout_s};
    watch.board = &boards[boards.size() == 1 ? 0 : static_cast<std::size_t>(world->rank())];
    if (boards.size() > 1) watch.boards = boards;
    if (config_.comm.checked) world = make_checked(std::move(world));
    world = make_watched(std::move(world), watch);
    if (!faults_.empty()) world = make_faulty(std::move(world), faults_);
    world = make_counting(std::move(world), counts);
    Rank rank{*world, counts, ranks_here};
    return body_(rank);
  }

 private:
  const RunConfig& config_;
  const std::vector<FaultRule> faults_;
  const std::function<int(Rank&)>& body_;
};

// What a rank that has failed leaves its peers to end: they notice within microseconds.
constexpr std::chrono::seconds kGrace{1};

int run_threads(Job& job, int ranks) {
  std::vector<WaitBoard> boards(static_cast<std::size_t>(ranks));
  Failures failures(ranks, kGrace);
  try {
    run_thread_ranks(ranks, {}, [&](std::unique_ptr<Communicator> world) {
      const int rank = world->rank();
      try {
        failures.ended(rank, job.rank(std::move(world), ranks, boards));
      } catch (...) {
        failures.failed(rank, std::current_exception());
        throw;
      }
    });
  } catch (...) {
    if (!failures.any()) throw;  // a thread that did not start
  }
  return failures.report();
}

// mpirun sends SIGTERM both to end a job and to the survivors of a dead rank, and SIGKILL a second
// later (or what its user sets). Until then a step may end and a checkpoint be written; a rank that
// waits for a dead peer then says for what. Other launchers mean an orderly end by it.
MpiOptions mpi_options(const Launch& launch) {
  MpiOptions options;
  if (launch.launcher == Launcher::kOpenMpi || launch.launcher == Launcher::kMpich) {
    const char* set = std::getenv("OMPI_MCA_odls_base_sigkill_timeout");
    const std::chrono::seconds killed_after{std::max(set == nullptr ? 1 : std::atoi(set), 1)};
    const std::chrono::milliseconds patience = killed_after - std::chrono::milliseconds(500);
    options.interrupted = [patience] { return StopSignals::since_terminate() > patience; };
  }
  return options;
}

// This process is one rank. When it fails, the job ends: the launcher tells the others.
int run_process(Job& job, const Launch& launch, const std::function<void()>& prepare) {
  const StopSignals signals;
  MpiWorld mpi(launch, mpi_options(launch));
  std::unique_ptr<Communicator> world = mpi.communicator();
  const std::string who = fmt::format("rank {}: ", launch.rank);
  int code = kDone;
  if (launch.size > 1 && launch.rank == 0) {
    code = guarded([&] { return prepare(), kDone; }, who);
    if (code != kDone) mpi.end_job(code);
  }
  std::array<WaitBoard, 1> board;
  const int failure = guarded(
      [&] {
        world->barrier().wait();  // not watched: to prepare may take its time
        code = job.rank(std::move(world), launch.local_size, board);
        return kDone;
      },
      who);
  if (failure != kDone) mpi.end_job(launch.size > 1 ? worst(failure, kPeerFailed) : failure);
  return code;
}

}  // namespace

Launch launch_of_this_process() {
  const Launch launch = discover_launch(process_environment);
  refuse_torchrun_on_cpus(launch, "quatrain train CONFIG");
  return launch;
}

int launched_ranks(const Launch& launch) { return launch.size > 1 ? launch.size : 0; }

int run_on_ranks(const RunConfig& config, const Launch& launch,
                 const std::function<void()>& prepare, const std::function<int(Rank&)>& body) {
  Job job(config, body);
  const int ranks = ranks_of(config);
  if (launch.size > 1 || config.comm.backend == "mpi") {
    return run_process(job, launch, prepare);
  }
  if (ranks > 1 || config.comm.backend == "thread") {
    if (ranks > 1) prepare();
    return run_threads(job, ranks);
  }
  std::array<WaitBoard, 1> board;
  return job.rank(make_self_communicator(), 1, board);
}

}  // namespace quatrain::apps
