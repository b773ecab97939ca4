// SPDX-License-Identifier: Apache-2.0
// What a micro-batch carries beside activations, from what the loader gives.
#pragma once
#include <cstdint>

#include "quatrain/data/data_loader.h"
#include "quatrain/nn/context_parallel.h"
#include "quatrain/nn/layer.h"

namespace quatrain {

// What all passes of a step share.
struct StepContext {
  std::int64_t step = 0;
  double loss_scale = 0.0;  // 1 / trained tokens of the global batch; 0 when there are none
  double z_loss = 0.0;
  std::uint64_t seed = 0;
  GradSink* grads = nullptr;
  double router_z_loss = 0.0;
  at::Tensor router_loads_LE{};  // of the step before
};
// `cp`: of each sequence this rank's tokens are taken.
Pass training_pass(const Batch& batch, const StepContext& context, int microbatch,
                   const ContextParallel& cp);

// Loss only, unscaled.
Pass evaluation_pass(const Batch& batch, std::int64_t step, int microbatch,
                     const ContextParallel& cp);

}  // namespace quatrain
