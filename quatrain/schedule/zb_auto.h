// SPDX-License-Identifier: Apache-2.0
// Zero-bubble schedules made for given costs and a limit of memory (Qi et al., arXiv:2401.10241,
// section 3 and appendix B).
#pragma once
#include "quatrain/schedule/durations.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

// One stage a rank, backward in halves. The best of eight greedy runs, by the rank that takes
// longest. A limit of 1 gives ZB-1p, 2 ZB-2p; one below 1 is allowed and slow: ranks then
// take turns. Throws ConfigError where even one
// micro-batch at a time does not fit. Linear in ranks squared times micro-batches.
Schedule zb_auto(int num_ranks, int num_microbatches, const ScheduleCosts& costs);

}  // namespace quatrain
