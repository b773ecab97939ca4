// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process. Collectives read the peers' tensors where they lie: nothing is
// staged and nothing is copied twice.
//
// Who moves the bytes: an operation is cut into one part a rank, and a part may be done by any
// thread once every member has called. A rank in wait() does its own part and then others' parts
// that nobody has begun; up to 16 KiB whoever calls last does all of them at once; what nobody
// waits for (communication behind compute) is taken by a progress thread after a grace: 100 us, or
// 20 ms where ranks fill the cores.
// So a blocking call pays no thread hop, and an asynchronous one needs nobody to come back.
#pragma once
#include <chrono>
#include <functional>
#include <memory>

#include "quatrain/comm/communicator.h"

namespace quatrain {

struct ThreadOptions {
  // How long a wait polls before its thread sleeps. Ranks that outnumber the cores never poll.
  std::chrono::microseconds spin{50};
  // Fails the job as soon as every rank waits for calls that no rank can make any more.
  bool detect_deadlock = true;
};

// Runs rank_main as ranks 0 to n-1 of a world of n, each on a thread of its own, and returns when
// all have ended. Throws the first error of any rank; every other rank leaves its waits with a
// CommError that carries it ("rank 5 failed first: ..."). A deadlock is an error of that kind too:
// its text names the wait of every rank. Tensors in flight are released on their rank's thread
// before its rank_main is left, so what rank_main owns outlives them.
void run_thread_ranks(int n, const ThreadOptions& options,
                      const std::function<void(std::unique_ptr<Communicator> world)>& rank_main);

}  // namespace quatrain
