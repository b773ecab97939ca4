// SPDX-License-Identifier: Apache-2.0
// Outputs and gradients between stages: how many a rank may hold that are on their way.
#pragma once
#include <vector>

#include "quatrain/schedule/schedule.h"

namespace quatrain {

// [rank] the most at once, each of message_bytes(): what it sends, from the computation that makes
// it until the receiver must have it, since this rank computes with something that the receiver
// sent after it had computed with it; and what a stage hands to the next on the same rank. They are
// scratch, and this an upper bound: a message is mostly gone sooner. `schedule`: with messages
// written out.
std::vector<int> handed_on_bound(const Schedule& schedule);

}  // namespace quatrain
