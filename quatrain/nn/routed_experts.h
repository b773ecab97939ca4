// SPDX-License-Identifier: Apache-2.0
// The experts of a layer that routers send rows to: gated MLPs, each over its own run of rows. The
// weight of a choice multiplies the activation, not the expert's output: the sum over choices is
// the same, and outputs need not be kept.
// Shapes: N rows of the micro-batch, k choices each; M choices with room that this rank sends, X
// rows that its experts compute (M, where none move), D hidden, F an expert's width (this rank's).
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "quatrain/kernels/expert_rows.h"
#include "quatrain/nn/expert_parallel.h"
#include "quatrain/nn/layer.h"
#include "quatrain/nn/parallel_linear.h"

namespace quatrain {

// One gated expert: gate and up as one matrix, and down.
struct ExpertParams {
  ParamRange up, down;
};

// Of each row of the micro-batch.
struct Choices {
  at::Tensor experts_Nk;  // int64; below 0: it found no room
  at::Tensor weights_Nk;  // wide
};

class RoutedExperts {
 public:
  // `params`: of those of `experts` that are here. `ep` is borrowed.
  RoutedExperts(std::int64_t experts, std::vector<ExpertParams> params, const ExpertParallel& ep);

  // What weight halves of these experts read of the whole micro-batch; where rows move, they keep
  // what arrived.
  bool reads_x() const { return !ep_.moves() && trains(&ExpertParams::up); }
  bool reads_dy() const { return !ep_.moves() && trains(&ExpertParams::down); }
  bool reads_choices() const { return reads_x() || reads_dy(); }

  // Terms [N, D] of the sum of each row's experts, nothing in a rerun; `under` runs while rows are
  // on their way.
  at::Tensor forward(const at::Tensor& x_ND, const Choices& choices, const Pass& pass, Stash& stash,
                     const Fill& under) const;
  struct Grads {
    at::Tensor dx_ND, dweights_Nk;  // terms
  };
  Grads backward_input(const at::Tensor& dy_ND, const Choices& choices, Stash& stash,
                       const Fill& under) const;

  // Weight halves, += through pass.grads, of what the input half left in the stash; what reads_*()
  // say is false may be undefined.
  bool waits_for_down(const Stash& stash) const;
  bool waits_for_up(const Stash& stash) const;
  void down_weights(const at::Tensor& dy_ND, const at::Tensor& experts_Nk, const Pass& pass,
                    Stash& stash) const;
  void up_weights(const at::Tensor& x_ND, const at::Tensor& experts_Nk, const Pass& pass,
                  Stash& stash) const;

 private:
  struct Route {  // choices of this rank's slice of the micro-batch, as rows by expert
    kernels::ExpertRows rows;
    at::Tensor weights_M;
  };
  Route route(const Choices& choices) const;
  at::Tensor slice(const at::Tensor& x_N) const;
  at::Tensor whole(const at::Tensor& slice, std::int64_t rows) const;
  kernels::ExpertRows sorted(const at::Tensor& experts_Nk) const;
  struct Runs {  // rows of some of the experts that are here, from 0
    Range experts;
    std::vector<std::int64_t> begin;
  };
  Runs all_of(std::vector<std::int64_t> begin) const;
  static Runs some_of(const std::vector<std::int64_t>& begin, Range experts);
  struct Outputs {
    at::Tensor y_XD, pre;
  };
  Outputs compute(const at::Tensor& x_XD, const at::Tensor& weights_X, const Runs& runs,
                  const Pass& pass) const;
  struct RowGrads {
    at::Tensor dx_XD, dweights_X;
    at::Tensor act, dpre;  // for the weight halves; act is absent where down's is not trained
  };
  RowGrads compute_backward(const at::Tensor& dy_XD, const at::Tensor& weights_X,
                            const at::Tensor& pre, const Runs& runs) const;
  void keep(at::Tensor act, at::Tensor dpre, Stash& stash) const;
  // The same by the ranks that have the experts: what is sent there and what comes back. Pieces are
  // computed while others are on their way.
  at::Tensor forward_there(const at::Tensor& x_MD, const Route& here, const Pass& pass,
                           Stash& stash, const Fill& under) const;
  std::pair<at::Tensor, at::Tensor> backward_there(const at::Tensor& dy_MD, const Route& here,
                                                   Stash& stash, const Fill& under) const;
  // Of every expert with rows: dy's rows by those of x.
  void outer(ParamRange ExpertParams::*part, const at::Tensor& dy_XO, const at::Tensor& x_XI,
             std::span<const std::int64_t> begin, const Pass& pass) const;
  // The runs of experts, of what arrived; lets go of the counts with the last that needs them.
  std::vector<std::int64_t> arrived_runs(Stash& stash) const;

  bool trains(ParamRange ExpertParams::*part) const;
  std::vector<at::Tensor> matrices(ParamRange ExpertParams::*part, Range experts) const;

  std::int64_t experts_;
  std::vector<ExpertParams> params_;
  const ExpertParallel& ep_;
};

}  // namespace quatrain
