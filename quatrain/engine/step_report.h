// SPDX-License-Identifier: Apache-2.0
// What one optimizer step came to.
#pragma once
#include <cstdint>
#include <vector>

#include "quatrain/engine/trace.h"
#include "quatrain/kernels/flops.h"

namespace quatrain {

struct StepReport {
  std::int64_t step = 0;
  double loss = 0.0;       // mean over all trained tokens of the global batch, without z-loss
  double grad_norm = 0.0;  // before clipping
  double max_logit = 0.0;  // max |logit| of the step
  double max_attention_lse = 0.0;  // LossSums', of the step
  std::int64_t trained_tokens = 0;
  bool skipped = false;  // no update: the gradient is not finite, or no token is trained
  FlopCounter flops;
  double exposed_comm_ms = 0.0;   // this rank's thread blocked on collectives
  double bubble_ms = 0.0;         // and on other stages
  std::vector<TraceEvent> trace;  // empty unless asked for
};

}  // namespace quatrain
