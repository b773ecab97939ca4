// SPDX-License-Identifier: Apache-2.0
// The most that a lowered row holds at once beside what a rank keeps all the time. The schedule's
// order of passes makes it, so it is read off the row, action by action.
#pragma once
#include <vector>

#include "quatrain/base/units.h"
#include "quatrain/cost/walk.h"
#include "quatrain/cost/zero.h"
#include "quatrain/schedule/action.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

// Each entry's highest by itself, which need not be at the same time.
struct RowPeaks {
  // Stashes of all micro-batches between layers' passes: UnitCost::stash() from a layer's forward
  // on, weight_stash() from its input half on; a fused backward frees all. What is received is its
  // first layer's block input from that layer's forward on.
  Bytes activations;
  // What exists between uses, all together: the three below.
  Bytes buffers;
  Bytes gathered;  // units between UNSHARD and RESHARD, stage 3
  // Received tensors, from RECV until the stage's first layer takes the output (a head, that has no
  // block input, until its forward ends), or its last layer's input half the gradient. Those of a
  // stage without layers until it sends them on.
  Bytes slots;
  Bytes logits;       // the head's chunk, in its forward
  Bytes whole_grads;  // gradients not reduced yet, stages 2 and 3
};
// `shape`: of the rank that walks `row`. Outputs and gradients on their way to another stage are
// scratch: see handed_on_bound().
RowPeaks row_peaks(const std::vector<Action>& row, const ZeroShape& shape, const ModelSpec& model,
                   const WorkShape& work);

}  // namespace quatrain
