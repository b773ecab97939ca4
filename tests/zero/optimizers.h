// SPDX-License-Identifier: Apache-2.0
// What these tests train with: SGD shows every factor of a gradient, AdamW clips so that it bites.
#pragma once
#include "quatrain/optim/optimizer.h"

namespace quatrain {

inline const OptimizerOptions kSgd = {
    .name = "sgd", .lr = 0.1, .weight_decay = 0.0, .max_norm = 0.0};
inline const OptimizerOptions kAdamW = {
    .name = "adamw", .lr = 1e-3, .weight_decay = 0.1, .max_norm = 0.5};

}  // namespace quatrain
