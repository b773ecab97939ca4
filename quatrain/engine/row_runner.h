// SPDX-License-Identifier: Apache-2.0
// The walk over one rank's row of a schedule: what is received, computed and sent, and when. Knows
// no schedule by name and nothing of models: stages that train, evaluate or merely wait are behind
// one interface.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "quatrain/engine/pipeline.h"
#include "quatrain/engine/trace.h"
#include "quatrain/schedule/action.h"

namespace quatrain {

// A micro-batch on its way through a stage: forward, activations go in and out, backward,
// gradients.
struct StageEnd {
  int stage = 0;
  int microbatch = 0;
  bool forward = true;
};

// The stages of one rank. Tensors change hands and are not copied: what is taken or given is the
// receiver's.
class StageWork {
 public:
  virtual ~StageWork() = default;
  // A computation, whose input was given, or any other action that is no message.
  virtual void run(const Action& action) = 0;
  // What another rank's message is received into.
  virtual at::Tensor slot(const StageEnd& end) = 0;
  // The neighbour's output, or its input gradient, ahead of the first computation that reads it.
  virtual void give(const StageEnd& end, at::Tensor x) = 0;
  // The stage's own output, or input gradient, once it is there.
  virtual at::Tensor take(const StageEnd& end) = 0;
};

// Receives are posted where the row says so, and waited for by the first action that needs them.
// Sends go on by themselves: what they send is kept until they are done. Between stages of one rank
// tensors are handed over. Throws BugError for a row that receives or sends what it must not.
void run_row(const std::vector<Action>& row, Pipeline& pipeline, StageWork& stages,
             TraceRecorder& trace);

}  // namespace quatrain
