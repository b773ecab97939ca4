// SPDX-License-Identifier: Apache-2.0
// The two walks.
#include "quatrain/nn/layer_row.h"

#include "quatrain/kernels/flops.h"
#include "quatrain/nn/check.h"

namespace quatrain {

at::Tensor forward_row(std::span<const std::unique_ptr<Layer>> layers, const at::Tensor& x,
                       const Pass& pass, std::vector<Stash>& stashes) {
  const ScopedPass forward(PassKind::kForward);
  stashes.resize(layers.size());
  at::Tensor y = x;
  for (std::size_t i = 0; i < layers.size(); ++i) y = layers[i]->forward(y, pass, stashes[i]);
  return y;
}

at::Tensor backward_row(std::span<const std::unique_ptr<Layer>> layers, const at::Tensor& dy,
                        const Pass& pass, std::vector<Stash>& stashes) {
  CHECK(stashes.size() == layers.size(), "{} stashes for {} layers", stashes.size(), layers.size());
  NoFiller filler;
  at::Tensor gradient = dy;
  for (std::size_t i = layers.size(); i-- > 0;) {
    {
      const ScopedPass input(PassKind::kBackwardInput);
      gradient = layers[i]->backward_input(gradient, pass, stashes[i], filler);
    }
    const ScopedPass weight(PassKind::kBackwardWeight);
    layers[i]->backward_weight(pass, stashes[i]);
  }
  return gradient;
}

}  // namespace quatrain
