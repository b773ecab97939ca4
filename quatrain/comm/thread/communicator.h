// SPDX-License-Identifier: Apache-2.0
// One rank's end of a group of thread ranks. Belongs to that rank's thread.
#pragma once
#include <memory>

#include "quatrain/comm/communicator.h"
#include "quatrain/comm/thread/group.h"

namespace quatrain {

// `group` lives as long as the job.
std::unique_ptr<Communicator> make_thread_communicator(std::shared_ptr<ThreadJob> job,
                                                       ThreadGroup& group, int rank);

}  // namespace quatrain
