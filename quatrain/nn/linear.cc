// SPDX-License-Identifier: Apache-2.0
// Linear layers over kernels::matmul. Where sums are made in the result's own dtype, the bias (and
// the residual) is laid into the result first and the GEMM adds to it.
#include "quatrain/nn/linear.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>

#include "quatrain/kernels/matmul.h"

namespace quatrain {
namespace {

bool sums_in_place(const at::Tensor& x) { return wide(x.scalar_type()) == x.scalar_type(); }

}  // namespace

Linear::Linear(const ParamRange& weight, const ParamRange& bias) : weight_(weight), bias_(bias) {
  for (const Param* p = weight.first; p <= weight.last; ++p) out_local_ += p->local_shape[0];
}

at::Tensor Linear::forward(const at::Tensor& x_NI) const {
  const at::Tensor w_OI = weight_.value();
  if (!bias_.present()) return kernels::matmul(kernels::n(x_NI), kernels::t(w_OI));
  const at::Tensor b_O = bias_.value();
  if (!sums_in_place(x_NI)) {
    at::Tensor y_NO = kernels::matmul(kernels::n(x_NI), kernels::t(w_OI));
    return y_NO.add_(b_O);
  }
  at::Tensor y_NO = at::empty({x_NI.size(0), w_OI.size(0)}, x_NI.options());
  y_NO.copy_(b_O.expand_as(y_NO));
  kernels::matmul_add(y_NO, kernels::n(x_NI), kernels::t(w_OI));
  return y_NO;
}

at::Tensor Linear::forward_onto(const at::Tensor& residual_NO, const at::Tensor& x_NI) const {
  if (!sums_in_place(x_NI)) return forward(x_NI).add_(residual_NO);
  at::Tensor y_NO = bias_.present() ? at::add(residual_NO, bias_.value()) : residual_NO.clone();
  const at::Tensor w_OI = weight_.value();
  kernels::matmul_add(y_NO, kernels::n(x_NI), kernels::t(w_OI));
  return y_NO;
}

at::Tensor Linear::backward_input(const at::Tensor& dy_NO) const {
  const at::Tensor w_OI = weight_.value();
  return kernels::matmul(kernels::n(dy_NO), kernels::n(w_OI));
}

void Linear::backward_weight(GradSink& grads, const at::Tensor& dy_NO,
                             const at::Tensor& x_NI) const {
  if (weight_.any_trainable()) grads.outer(weight_, dy_NO, x_NI);
  if (bias_.any_trainable()) grads.rows(bias_, dy_NO);
}

}  // namespace quatrain
