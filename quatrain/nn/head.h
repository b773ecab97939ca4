// SPDX-License-Identifier: Apache-2.0
// The last layer: final norm, logits, token cross-entropy and z-loss (Chowdhery et al.,
// arXiv:2204.02311, section 5). In training its forward makes loss, input gradient and weight
// gradients, chunk by chunk over positions: logits exist for one chunk at a time and once, and of a
// cut vocabulary no rank ever holds a whole row.
// Shapes: N = B T rows, R of the residual stream, C rows of a chunk, D hidden, V vocabulary (this
// rank's).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "quatrain/nn/layer.h"
#include "quatrain/nn/tensor_parallel.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

struct HeadParams {
  ParamRange norm, norm_bias;
  ParamRange weight;  // lm_head, or the embedding's table when tied
};

class Head final : public Layer {
 public:
  // `unit`: the head's own. `chunk_tokens`: rows whose logits exist at once.
  Head(const ModelSpec& spec, ParamUnit& unit, const HeadParams& params, const TensorParallel& tp,
       std::int64_t chunk_tokens);

  at::Tensor forward(const at::Tensor& x_RD, const Pass& pass, Stash& stash) override;
  at::Tensor backward_input(const at::Tensor& dy, const Pass& pass, Stash& stash,
                            Filler& filler) override;
  void backward_weight(const Pass& pass, Stash& stash) override;
  // Its own, and the embedding's when the table is tied.
  std::vector<ParamUnit*> units() override;

 private:
  at::Tensor last_logits(const at::Tensor& x_RD, const Pass& pass) const;
  // Sums over all rows of the normalised input n; in training n becomes its own gradient (this
  // rank's term of it) and the weight's goes (+=) to the sink.
  LossSums run_chunks(at::Tensor& n_ND, const Pass& pass) const;
  LossSums loss_of(at::Tensor& logits_CV, const at::Tensor& labels_C, const Pass& pass) const;

  ParamUnit& unit_;
  const TensorParallel& tp_;
  ParamRange norm_;
  ParamRange norm_bias_;
  ParamRange weight_;
  double eps_;
  std::int64_t chunk_tokens_;
};

}  // namespace quatrain
