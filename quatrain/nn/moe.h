// SPDX-License-Identifier: Apache-2.0
// A mixture of experts as a block's feed-forward part: a router sends every row to its k best
// experts, a shared expert sees all of them (DeepSeekMoE, arXiv:2401.06066; Mixtral,
// arXiv:2401.04088). No choice is dropped unless experts have a capacity. All ranks of tp route all
// rows alike; the shared expert is cut as a dense matrix is, and the sum of all experts is left as
// terms. Shapes: N rows of the micro-batch, R of the residual stream, D hidden, E experts, k a
// row's, S the shared expert's width.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "quatrain/kernels/router.h"
#include "quatrain/nn/block_parts.h"
#include "quatrain/nn/context_parallel.h"
#include "quatrain/nn/dropout.h"
#include "quatrain/nn/routed_experts.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

// How routers train.
struct RouterTraining {
  kernels::ExpertCapacity capacity{};
  kernels::BalanceOver balance = kernels::BalanceOver::kSequence;
  double jitter = 0.0;
};

struct MoeParams {
  ParamRange router;
  ParamRange bias;                    // of the choice; absent without one
  std::vector<ExpertParams> experts;  // those that are here
  ExpertParams shared;                // absent without shared experts
};

class Moe final : public FeedForward {
 public:
  // `kept`: the stash's row of the norm's output.
  Moe(const ModelSpec& spec, std::int64_t layer, const MoeParams& params, const ModelRanks& ranks,
      const RouterTraining& training, std::string_view kept);

  at::Tensor forward(const at::Tensor& x_RD, const at::Tensor& residual_RD, const Pass& pass,
                     Stash& stash, bool keep_x) const override;
  at::Tensor backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                            const Fill& fill) const override;
  bool weight_piece(const Pass& pass, Stash& stash) const override;
  bool needs_x() const override;

 private:
  struct Choice {
    at::Tensor logits_NE, experts_Nk;
    at::Tensor sent_Nk;  // those of them that find room, others as ~expert
  };
  Choice route(const at::Tensor& x_ND, const Pass& pass) const;
  kernels::RouterSequences sequences(const Pass& pass, const at::Tensor& counts_BE) const;
  at::Tensor read_by_router(const at::Tensor& x_ND, const Pass& pass) const;
  // Where sequences are shared, the balance loss needs choices of all their rows, [B, E].
  bool counts_whole_sequences() const {
    return context_.cuts() && balance_coef_ != 0.0 &&
           balance_over_ != kernels::BalanceOver::kGlobalBatch;
  }
  at::Tensor counts_of_sequences(const Choice& choice, const Pass& pass) const;
  void observe(const Choice& choice, const Pass& pass, const at::Tensor& counts_BE) const;
  Choice stashed(Stash& stash) const;
  Choices weighted(const Choice& choice) const;
  at::Tensor shared_activation(const at::Tensor& x_ND, const Pass& pass, Stash& stash) const;
  void add_shared_backward(at::Tensor& dx_ND, const at::Tensor& dy_ND, Stash& stash) const;
  at::Tensor router_backward(const at::Tensor& dweights_Nk, const Choice& choice, const Pass& pass,
                             Stash& stash) const;
  void down_weights(const Pass& pass, Stash& stash) const;
  void up_weights(const Pass& pass, Stash& stash) const;

  bool has_shared() const { return params_.shared.up.present(); }
  bool needs_dy() const;
  bool up_waits(const Stash& stash) const;
  bool keeps_whole_dy(const Pass& pass) const;

  std::int64_t layer_, layers_;
  kernels::RouterRule rule_;
  double balance_coef_;
  kernels::ExpertCapacity capacity_;
  kernels::BalanceOver balance_over_;
  MoeParams params_;
  RoutedExperts experts_;
  const TensorParallel& tp_;
  const ContextParallel& context_;
  Dropout dropout_;
  RouterJitter jitter_;
  std::string_view kept_;
};

}  // namespace quatrain
