// SPDX-License-Identifier: Apache-2.0
// A training step of a small model on one rank: what shows the cost of all that is neither product
// nor attention.
#pragma once
#include <cstdint>
#include <functional>

#include "quatrain/spec/model_spec.h"

namespace quatrain {

struct StepTrial {
  ModelSpec model;
  std::int64_t sequences, seq;
};
StepTrial step_trial();

// Each call is one more step, in float32 with AdamW, on this thread.
std::function<void()> training_step();

}  // namespace quatrain
