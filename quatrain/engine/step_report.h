// SPDX-License-Identifier: Apache-2.0
// What one optimizer step came to.
#pragma once
#include <cstdint>
#include <vector>

#include "quatrain/engine/trace.h"
#include "quatrain/kernels/flops.h"

namespace quatrain {

// Of models with experts. The losses as they are part of the objective, all layers together.
struct RouterReport {
  double balance = 0.0;
  double z = 0.0;
  double entropy = 0.0;      // mean over rows and layers, nats
  std::int64_t dropped = 0;  // choices that found no room
  // By layer: choices of each expert; zeros where it is dense.
  std::vector<std::vector<double>> loads;
  // The largest load over the mean one, of the layer where it is worst; 0 without experts.
  double worst_load() const;
};

struct StepReport {
  std::int64_t step = 0;
  double loss = 0.0;       // mean over all trained tokens of the global batch, without z-loss
  double grad_norm = 0.0;  // before clipping
  double max_logit = 0.0;  // max |logit| of the step
  double max_attention_lse = 0.0;  // LossSums', of the step
  std::int64_t trained_tokens = 0;
  RouterReport router;
  bool skipped = false;  // no update: the gradient is not finite, or no token is trained
  FlopCounter flops;
  double exposed_comm_ms = 0.0;   // this rank's thread blocked on collectives
  double bubble_ms = 0.0;         // and on other stages
  std::vector<TraceEvent> trace;  // empty unless asked for
};

}  // namespace quatrain
