// SPDX-License-Identifier: Apache-2.0
// The embedding. The weight half reads the pass's token ids again, so the forward keeps nothing.
#include "quatrain/nn/embedding.h"

#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/vocab_share.h"

namespace quatrain {
namespace {

constexpr std::string_view kEmbeddingDy = "embedding.dy";

}  // namespace

Embedding::Embedding(const ModelSpec& spec, const ParamRange& tokens, const ParamRange& positions,
                     const TensorParallel& tp)
    : tp_(tp),
      tokens_(tokens),
      positions_(positions),
      dropout_(spec.embedding_dropout, Dropout::kEmbeddingSite, tp) {}

std::vector<ParamUnit*> Embedding::units() {
  if (!positions_.present() || positions_.unit == tokens_.unit) return {tokens_.unit};
  return {tokens_.unit, positions_.unit};
}

at::Tensor Embedding::forward(const at::Tensor& tokens_BT, const Pass& pass, Stash&) {
  const at::Tensor words_ND =
      kernels::embedding(tokens_.value(), tokens_BT.reshape({-1}), vocab_share(tokens_));
  at::Tensor x_RD = tp_.to_rows(words_ND).wait();
  if (positions_.present()) {
    const at::Tensor table_PD = positions_.value();
    const at::Tensor positions_R = tp_.own_rows(pass.positions_BT.reshape({-1}));
    x_RD.add_(kernels::embedding(table_PD, positions_R, kernels::whole_vocab(table_PD)));
  }
  dropout_.apply_(x_RD, pass);
  return x_RD;
}

at::Tensor Embedding::backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                                     Filler&) {
  if (trainable()) stash.save(dropout_.backward(dy_RD, pass), Until::kWeight, kEmbeddingDy);
  return {};
}

void Embedding::backward_weight(const Pass& pass, Stash& stash) {
  if (!trainable()) return;
  const at::Tensor dy_RD = stash.take(kEmbeddingDy);
  if (tokens_.any_trainable()) {
    const at::Tensor ids_N = pass.tokens_BT.reshape({-1});
    pass.grads->indexed(tokens_, ids_N, tp_.to_whole(dy_RD, ids_N.numel()).wait());
  }
  if (positions_.any_trainable()) {
    pass.grads->indexed(positions_, tp_.own_rows(pass.positions_BT.reshape({-1})), dy_RD);
  }
}

}  // namespace quatrain
