// SPDX-License-Identifier: Apache-2.0
// What shared sequences add to the attention of one layer and micro-batch on one rank of cp
// (docs/context_parallel.md): the walk's calls and bytes, timed, and the copies around them.
//
//   ring        a block travels while the one before is attended to: what takes longer shows; parts
//               of the softmax are merged block by block
//   all_gather  waited for; keys and values are put in order, their gradients added up
//   ulysses     waited for; what is exchanged is packed and unpacked
#pragma once
#include "quatrain/cost/walk.h"
#include "quatrain/planner/geometry.h"

namespace quatrain {

struct ContextTimes {
  double forward = 0, input = 0;   // seconds of copies and sums; without recomputation
  double exposed = 0, hidden = 0;  // of all passes' communication, recomputation's too
  double hidden_input = 0;         // of the hidden, the input half's
  double working = 0;              // bytes that a layer holds for it while at work
};

// The micro-batch's sequences, and how long its attention takes without all this.
struct AttentionWork {
  double sequences = 1;
  double forward = 0, input = 0;  // seconds
};

// `shape`: that `attention` was walked with, of one sequence; `model`: of one block.
ContextTimes context_times(const Job& job, const WorkShape& shape, const ModelSpec& model,
                           const OpCost& attention, const AttentionWork& work);

}  // namespace quatrain
