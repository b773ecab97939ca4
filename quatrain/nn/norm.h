// SPDX-License-Identifier: Apache-2.0
// LayerNorm (Ba et al., arXiv:1607.06450) and RMSNorm (Zhang & Sennrich, arXiv:1910.07467) over the
// last dim of the residual stream.
// Shapes: N rows, D width, L leaves (sequences) of the gains' gradients.
#pragma once
#include <ATen/core/Tensor.h>

#include <string_view>

#include "quatrain/nn/layer.h"

namespace quatrain {

class Norm {
 public:
  // Its rows in the stash.
  struct Rows {
    std::string_view x, mean, rstd, y, dgain, dbias;
  };
  // With a bias it is LayerNorm, without one RMSNorm.
  Norm(const ParamRange& gain, const ParamRange& bias, double eps, const Rows& rows);

  // The norm of x, after x += residual (in place) when that is defined. Keeps x and its statistics
  // for the input half.
  at::Tensor forward(at::Tensor& x_ND, const at::Tensor& residual_ND, Stash& stash) const;
  // Makes y again from what was kept, with its old bits, and keeps it for the weight half.
  void restore_y(Stash& stash) const;
  // dx + residual_grad. Takes x and its statistics; keeps the gains' sums, one row for each `leaf`
  // rows.
  at::Tensor backward_input(const at::Tensor& dy_ND, const at::Tensor& residual_grad_ND,
                            std::int64_t leaf, Stash& stash) const;
  void backward_weight(GradSink& grads, Stash& stash) const;  // +=

 private:
  at::Tensor bias_value() const { return bias_.present() ? bias_.value() : at::Tensor(); }

  ParamRange gain_;
  ParamRange bias_;
  double eps_;
  Rows rows_;
};

}  // namespace quatrain
