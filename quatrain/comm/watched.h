// SPDX-License-Identifier: Apache-2.0
// No wait lasts for ever: one that passes the timeout throws and says what it waited for and which
// ranks did not come. Keeps the rank's WaitBoard, so that a signal handler or another rank of the
// process can say the same of a rank that cannot speak.
#pragma once
#include <memory>
#include <span>

#include "quatrain/base/units.h"
#include "quatrain/comm/communicator.h"
#include "quatrain/comm/wait_board.h"

namespace quatrain {

struct WatchOptions {
  Seconds timeout{30.0};                   // of one operation, from the first wait for it
  WaitBoard* board = nullptr;              // this rank's; may be null
  std::span<const WaitBoard> boards = {};  // by world rank, where all ranks share this process
};

// A wait past options.timeout throws CommError: "mpi all_gather #3 on dp {0, 2}: no answer in 30 s
// from ranks {2}", then what this rank and, where boards are shared, the absent ranks finished last
// and wait for. A deadline of the caller that comes first is kept: wait_until() returns false.
// The boards must outlive the communicator, its groups and their operations. group() itself is
// not watched.
std::unique_ptr<Communicator> make_watched(std::unique_ptr<Communicator> inner,
                                           const WatchOptions& options);

}  // namespace quatrain
