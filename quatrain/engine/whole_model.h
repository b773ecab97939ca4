// SPDX-License-Identifier: Apache-2.0
// The model whole again from what ranks hold of it, a parameter at a time.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

#include "quatrain/engine/zero_units.h"

namespace quatrain {

enum class WholeOf : std::uint8_t { kValues, kGrads };

// f(parameter, its whole value or gradient) for every parameter of the model, in the order of
// parameters(), on every rank; without gradients those that are not trainable are left out. A unit
// is gathered for as long as its parameters are looked at. Called by all ranks, between steps.
void for_each_whole(
    ZeroUnits& units, WholeOf what,
    const std::function<void(const ParameterInfo& info, const at::Tensor& whole)>& f);

}  // namespace quatrain
