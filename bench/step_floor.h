// SPDX-License-Identifier: Apache-2.0
// The products of a training step alone: what a step of the same model cannot be faster than.
#pragma once
#include "step_rank.h"

namespace quatrain {

// Returns "seconds" of each measured round and "tokens" of one. Each matrix of the model has its
// three products, in float32, with memory of its own; attention is left out. Throws ConfigError for
// a model with experts or latent attention.
nlohmann::json measure_floor(const BenchModel& model, const StepOptions& options);

}  // namespace quatrain
