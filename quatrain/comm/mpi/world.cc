// SPDX-License-Identifier: Apache-2.0
// MPI's start and end.
#include <sys/uio.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <thread>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/comm/mpi/communicator.h"
#include "quatrain/comm/mpi/mpi.h"

namespace quatrain {
namespace {

// Containers may forbid reading another process's memory, Open MPI's way of moving long messages in
// one copy: it would then fail at the first of them. Asked of ourselves, as the filter does not
// look at whose memory it is.
bool may_read_processes() {
  int from = 1;
  int to = 0;
  const iovec local{.iov_base = &to, .iov_len = sizeof to};
  const iovec remote{.iov_base = &from, .iov_len = sizeof from};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == sizeof from;
}

// Open MPI's settings; what the user has set stays.
void choose_settings() {
  const auto prefer = [](const char* variable, const char* value) { setenv(variable, value, 0); };
  prefer("OMPI_MCA_mpi_warn_on_fork", "0");  // a child that only executes is harmless
  prefer("OMPI_MCA_btl_base_warn_component_unused", "0");
  if (!may_read_processes()) prefer("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
}

// Cores of this host that its ranks may use, bound or not.
bool has_own_core(int local_size) { return sysconf(_SC_NPROCESSORS_ONLN) >= local_size; }

void start_mpi() {
  int started = 0;
  MPI_Initialized(&started);
  CHECK(started == 0, "a second MpiWorld in one process");
  choose_settings();
  int level = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  if (code != MPI_SUCCESS) throw CommError("MPI_Init_thread failed: " + mpi_error(code));
  if (level < MPI_THREAD_SERIALIZED) {
    throw ConfigError("this MPI was built without threads: MPI_THREAD_SERIALIZED is needed");
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
}

Launch count_ranks(const Launch& launched) {
  Launch launch = launched;
  MPI_Comm_rank(MPI_COMM_WORLD, &launch.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &launch.size);
  check_mpi_agrees(launched, launch.rank, launch.size);
  MPI_Comm host = MPI_COMM_NULL;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, launch.rank, MPI_INFO_NULL, &host);
  MPI_Comm_rank(host, &launch.local_rank);
  MPI_Comm_size(host, &launch.local_size);
  MPI_Comm_free(&host);
  return launch;
}

std::unique_ptr<MpiLink> world_link(const Launch& launch) {
  auto link = std::make_unique<MpiLink>();
  link->name = "world";
  link->rank = launch.rank;
  link->ranks.resize(static_cast<std::size_t>(launch.size));
  std::iota(link->ranks.begin(), link->ranks.end(), 0);
  link->comm = make_group_comm(MPI_COMM_WORLD, link->ranks, kMpiMeetingTag);
  return link;
}

}  // namespace

// For messages of operations that failed; others were waited for.
constexpr std::chrono::milliseconds kSettleTime{200};

// For the launcher to read a rank's last line.
constexpr std::chrono::milliseconds kRelayTime{50};

struct MpiWorld::State {
  State(const Launch& found, MpiOptions options)
      : launch(found),
        engine(std::move(options), has_own_core(found.local_size)),
        link(engine.keep(world_link(found))) {}

  Launch launch;
  MpiEngine engine;
  const MpiLink& link;
};

MpiWorld::MpiWorld(const Launch& launch, MpiOptions options) {
  start_mpi();
  state_ = std::make_unique<State>(count_ranks(launch), std::move(options));
}

MpiWorld::~MpiWorld() {
  if (std::uncaught_exceptions() > 0 || !state_->engine.settle(kSettleTime)) return;
  const MpiCall call{.link = &state_->link,
                     .operation = Operation::kBarrier,
                     .sequence = 0,
                     .tag = kMpiMeetingTag};
  try {  // MPI_Finalize waits for all as well, but burns a core meanwhile
    mpi_meeting(state_->engine, call, state_->link.ranks);
  } catch (const std::exception& error) {
    log_error(error.what());
    return;
  }
  state_.reset();
  MPI_Finalize();
}

std::unique_ptr<Communicator> MpiWorld::communicator() {
  return make_mpi_communicator(state_->engine, state_->link);
}

const Launch& MpiWorld::launch() const { return state_->launch; }

void MpiWorld::end_job(int exit_code) {
  // The launcher relays standard error by another way than the abort: first why, then that.
  std::this_thread::sleep_for(kRelayTime);
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  throw BugError("MPI_Abort came back");
}

}  // namespace quatrain
