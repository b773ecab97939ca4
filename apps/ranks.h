// SPDX-License-Identifier: Apache-2.0
// One body on every rank of a job: this process alone, threads of it, or one process of an MPI
// job. Failures end the whole job: the first cause is printed first, then one line for the others.
#pragma once
#include <functional>
#include <memory>

#include "quatrain/comm/communicator.h"
#include "quatrain/comm/counting.h"
#include "quatrain/comm/launch.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {

// What a rank is given. The world counts, watches and, on request, checks every operation.
struct Rank {
  Communicator& world;
  CommCounts& counts;
  int ranks_here = 1;  // of this host: they share its cores
};

// The launcher's word, and torchrun on CPUs refused.
Launch launch_of_this_process();
// Processes of a launcher that started more than one; 0: ranks are this process's own business.
int launched_ranks(const Launch& launch);

// Returns the body's exit code, the worst of all ranks'. Of several ranks, rank 0 runs `prepare`
// before any runs the body: work that is done once, such as tokenizing into a cache.
int run_on_ranks(const RunConfig& config, const Launch& launch,
                 const std::function<void()>& prepare, const std::function<int(Rank&)>& body);

}  // namespace quatrain::apps
