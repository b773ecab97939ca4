// SPDX-License-Identifier: Apache-2.0
// A mixture of experts as a block's feed-forward part: a router sends every row to its k best
// experts, a shared expert sees all of them (DeepSeekMoE, arXiv:2401.06066; Mixtral,
// arXiv:2401.04088). No row is dropped. All ranks of tp route all rows alike and hold a share of
// every expert's width, as of a dense matrix: the experts' sum is left as terms.
// Shapes: N rows of the micro-batch, R of the residual stream, M = N k rows by expert, D hidden,
// E experts, F an expert's width (this rank's), S the shared expert's.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "quatrain/kernels/expert_rows.h"
#include "quatrain/kernels/router.h"
#include "quatrain/nn/block_parts.h"
#include "quatrain/nn/dropout.h"
#include "quatrain/nn/linear.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

// One gated expert: gate and up as one matrix, and down.
struct ExpertParams {
  ParamRange up, down;
};
struct MoeParams {
  ParamRange router;
  ParamRange bias;  // of the choice; absent without one
  std::vector<ExpertParams> experts;
  ExpertParams shared;  // absent without shared experts
};

class Moe final : public FeedForward {
 public:
  // `kept`: the stash's row of the norm's output.
  Moe(const ModelSpec& spec, std::int64_t layer, const MoeParams& params, const TensorParallel& tp,
      std::string_view kept);

  at::Tensor forward(const at::Tensor& x_RD, const at::Tensor& residual_RD, const Pass& pass,
                     Stash& stash, bool keep_x) const override;
  at::Tensor backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                            const Fill& fill) const override;
  bool weight_piece(const Pass& pass, Stash& stash) const override;
  bool needs_x() const override;

 private:
  struct Choice {
    at::Tensor logits_NE, experts_Nk;
  };
  struct Routed {  // choices as rows by expert
    kernels::ExpertRows rows;
    at::Tensor weights_M;
  };
  Choice route(const at::Tensor& x_ND) const;
  void observe(const Choice& choice, const Pass& pass) const;
  Routed sorted(const Choice& choice) const;
  at::Tensor experts_forward(const at::Tensor& x_ND, const Routed& routed, Stash& stash) const;
  void add_shared(at::Tensor& y_ND, const at::Tensor& x_ND, Stash& stash) const;
  // dx terms, and the gradient of the choices' weights, [N, k]: terms too.
  struct ExpertGrads {
    at::Tensor dx_ND, dweights_Nk;
  };
  ExpertGrads experts_backward(const at::Tensor& dy_ND, const Routed& routed, Stash& stash) const;
  void add_shared_backward(at::Tensor& dx_ND, const at::Tensor& dy_ND, Stash& stash) const;
  at::Tensor router_backward(const at::Tensor& dweights_Nk, const Choice& choice, const Pass& pass,
                             Stash& stash) const;
  void down_weights(const Pass& pass, Stash& stash) const;
  void up_weights(const Pass& pass, Stash& stash) const;
  // Of every expert with rows: dy's rows by those of x.
  void experts_outer(ParamRange ExpertParams::*part, const at::Tensor& dy_MO,
                     const at::Tensor& x_MI, const kernels::ExpertRows& rows,
                     const Pass& pass) const;

  bool has_shared() const { return params_.shared.up.present(); }
  bool trains(ParamRange ExpertParams::*part) const;  // some routed expert's
  bool needs_dy() const;
  bool keeps_whole_dy(const Pass& pass) const;
  std::vector<at::Tensor> matrices(ParamRange ExpertParams::*part) const;

  std::int64_t layer_, layers_;
  kernels::RouterRule rule_;
  double balance_coef_;
  MoeParams params_;
  const TensorParallel& tp_;
  Dropout dropout_;
  std::string_view kept_;
};

}  // namespace quatrain
