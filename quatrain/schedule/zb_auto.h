// SPDX-License-Identifier: Apache-2.0
// Zero-bubble schedules made for given costs and a limit of memory (Qi et al., arXiv:2401.10241,
// section 3 and appendix B).
#pragma once
#include "quatrain/schedule/durations.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

// One stage a rank, backward in halves. The best of eight greedy runs, by the rank that takes
// longest. A limit of 1 gives ZB-1p, 2 (the default) ZB-2p; one below 1 is allowed and slow: ranks
// then take turns. Throws ConfigError where even one micro-batch at a time does not fit. Linear in
// ranks squared times micro-batches.
Schedule zb_auto(int num_ranks, int num_microbatches, const ScheduleCosts& costs);

// Two stages a rank in a V, the best of four greedy runs. A limit of 1 (the default) is 2p chunks.
// Few micro-batches take the order that 2p would. Throws ConfigError where memory does not suffice.
Schedule zb_v_auto(int num_ranks, int num_microbatches, const ScheduleCosts& costs);

}  // namespace quatrain
