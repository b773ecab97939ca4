// SPDX-License-Identifier: Apache-2.0
// The first layer: rows of the token table, learned positions added (GPT-2), dropout.
// Shapes: B sequences, T positions, N = B T, R rows of the residual stream, V vocabulary, D hidden.
#pragma once
#include <ATen/core/Tensor.h>

#include "quatrain/nn/dropout.h"
#include "quatrain/nn/layer.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

class Embedding final : public Layer {
 public:
  // `positions` is absent where positions are not learned.
  Embedding(const ModelSpec& spec, const ParamRange& tokens, const ParamRange& positions,
            const TensorParallel& tp);

  at::Tensor forward(const at::Tensor& tokens_BT, const Pass& pass, Stash& stash) override;
  at::Tensor backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                            Filler& filler) override;
  void backward_weight(const Pass& pass, Stash& stash) override;
  std::vector<ParamUnit*> units() override;  // of the table, and of positions where that differs

 private:
  bool trainable() const { return tokens_.any_trainable() || positions_.any_trainable(); }

  const TensorParallel& tp_;
  ParamRange tokens_;  // this rank's words
  ParamRange positions_;
  Dropout dropout_;
};

}  // namespace quatrain
