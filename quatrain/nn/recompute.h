// SPDX-License-Identifier: Apache-2.0
// Full recomputation (Chen et al., arXiv:1604.06174): a layer keeps its input alone and runs its
// forward again, with the same bits, at the start of the input half; but for what makes its result
// alone, a block's last product and the exchange behind it.
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "quatrain/nn/layer.h"

namespace quatrain {

class Recomputed final : public Layer {
 public:
  explicit Recomputed(std::unique_ptr<Layer> inner) : inner_(std::move(inner)) {}

  at::Tensor forward(const at::Tensor& x_BTD, const Pass& pass, Stash& stash) override;
  at::Tensor backward_input(const at::Tensor& dy_BTD, const Pass& pass, Stash& stash,
                            Filler& filler) override;
  void backward_weight(const Pass& pass, Stash& stash) override;
  std::vector<ParamUnit*> units() override { return inner_->units(); }

 private:
  std::unique_ptr<Layer> inner_;
};

}  // namespace quatrain
