// SPDX-License-Identifier: Apache-2.0
// Plain walks over a row of layers, one stash a layer. FLOPs are counted by the half that runs.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "quatrain/nn/layer.h"

namespace quatrain {

// Returns the last layer's result. `stashes` is resized to one a layer.
at::Tensor forward_row(std::span<const std::unique_ptr<Layer>> layers, const at::Tensor& x,
                       const Pass& pass, std::vector<Stash>& stashes);
// Input and weight half of each layer in turn, from the last (+= into pass.grads); returns the
// first layer's dx.
at::Tensor backward_row(std::span<const std::unique_ptr<Layer>> layers, const at::Tensor& dy,
                        const Pass& pass, std::vector<Stash>& stashes);

}  // namespace quatrain
