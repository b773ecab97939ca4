// SPDX-License-Identifier: Apache-2.0
// Cosines and sines of the rotary embedding, made once a model and shared by its layers.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "quatrain/spec/model_spec.h"

namespace quatrain {

// Undefined where positions are learned.
struct RotaryTables {
  at::Tensor cos;  // [positions, d / 2], wide
  at::Tensor sin;
};

// `positions`: how many the tables hold. `dtype`: of what is rotated.
RotaryTables make_rotary(const ModelSpec& spec, std::int64_t positions, at::ScalarType dtype,
                         at::Device device);

}  // namespace quatrain
