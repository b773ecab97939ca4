// SPDX-License-Identifier: Apache-2.0
// The embedding. The weight half reads the pass's token ids again, so the forward keeps nothing.
#include "quatrain/nn/embedding.h"

#include "quatrain/kernels/pointwise.h"

namespace quatrain {
namespace {

constexpr std::string_view kDy = "embedding.dy";

}  // namespace

Embedding::Embedding(const ModelSpec& spec, const ParamRange& tokens, const ParamRange& positions)
    : tokens_(tokens),
      positions_(positions),
      dropout_(spec.embedding_dropout, Dropout::kEmbeddingSite) {}

at::Tensor Embedding::forward(const at::Tensor& tokens_BT, const Pass& pass, Stash&) {
  at::Tensor x_ND = kernels::embedding(tokens_.value(), tokens_BT.reshape({-1}));
  if (positions_.present()) {
    x_ND.add_(kernels::embedding(positions_.value(), pass.positions_BT.reshape({-1})));
  }
  dropout_.apply_(x_ND, pass);
  return x_ND.view({tokens_BT.size(0), tokens_BT.size(1), x_ND.size(1)});
}

at::Tensor Embedding::backward_input(const at::Tensor& dy_BTD, const Pass& pass, Stash& stash,
                                     Filler&) {
  if (trainable()) {
    const at::Tensor dy_ND = dy_BTD.view({-1, dy_BTD.size(-1)});
    stash.save(dropout_.backward(dy_ND, pass), Until::kWeight, kDy);
  }
  return {};
}

void Embedding::backward_weight(const Pass& pass, Stash& stash) {
  if (!trainable()) return;
  const at::Tensor dy_ND = stash.take(kDy);
  pass.grads->indexed(tokens_, pass.tokens_BT.reshape({-1}), dy_ND);
  if (positions_.present()) {
    pass.grads->indexed(positions_, pass.positions_BT.reshape({-1}), dy_ND);
  }
}

}  // namespace quatrain
