// SPDX-License-Identifier: Apache-2.0
// Tensors whole again from the pieces of tensor-parallel ranks.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/nn/param.h"

namespace quatrain {

// `piece`: this rank's value or gradient of the parameter, local_shape. Returns the global one, on
// every rank of `tensor`; `piece` itself where it is whole already.
at::Tensor whole_over(Communicator& tensor, const Param& param, const at::Tensor& piece);

// The same from any pieces: rank r of `holders` has what lies in boxes[r], which may be empty;
// together they are a tensor of `shape`.
at::Tensor whole_over(Communicator& holders, const std::vector<std::int64_t>& shape,
                      const std::vector<Box>& boxes, const at::Tensor& piece);

// The part of a tensor that lies in `box`, as a view.
at::Tensor within(at::Tensor whole, const Box& box);

}  // namespace quatrain
