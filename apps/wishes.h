// SPDX-License-Identifier: Apache-2.0
// What the user asks of a run while it trains: by a signal to any rank, or by a file in the run's
// folder ("save-now", "stop-now"), which rank 0 takes away.
#pragma once
#include <filesystem>

#include "quatrain/comm/communicator.h"

namespace quatrain::apps {

struct Wishes {
  bool save = false;  // a checkpoint now
  bool stop = false;  // a checkpoint, and the end
};
// The same on every rank. A collective.
Wishes agreed_wishes(const std::filesystem::path& run, Communicator& world);

}  // namespace quatrain::apps
