// SPDX-License-Identifier: Apache-2.0
// Zero-bubble schedules made for given costs and a limit of memory (Qi et al., arXiv:2401.10241,
// section 3 and appendix B).
#pragma once
#include <vector>

#include "quatrain/schedule/durations.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

struct ZbAutoCosts {
  std::vector<StageDurations> durations;  // [stage] empty: 1 each and no time for messages
  std::vector<StashDeltas> stash;         // [stage] empty: 1 activation until the weight half
  double memory_limit = 0.0;              // of each rank, in the unit of `stash`
};

// One stage a rank, backward in halves. The best of eight greedy runs, by the rank that takes
// longest. p activations of memory give ZB-1p, 2p ZB-2p; less than p is allowed and slow, since
// the first micro-batch then meets the second's turn late. Throws ConfigError where even one
// micro-batch at a time does not fit. Linear in ranks squared times micro-batches.
Schedule zb_auto(int num_ranks, int num_microbatches, const ZbAutoCosts& costs);

}  // namespace quatrain
