// SPDX-License-Identifier: Apache-2.0
// Keys of a micro-batch's dropout, from what its pass carries.
#include "quatrain/nn/dropout.h"

#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/check.h"

namespace quatrain {

void Dropout::apply_(at::Tensor& x_RD, const Pass& pass) const {
  if (!active(pass)) return;
  CHECK(pass.sample_ids_B.defined(), "dropout needs the ids of samples");
  const at::Tensor samples_BT = pass.sample_ids_B.unsqueeze(1).expand_as(pass.positions_BT);
  kernels::dropout_(x_RD, p_,
                    {.seed = pass.seed,
                     .step = pass.step,
                     .site = site_,
                     .samples_N = rows_.own_rows(samples_BT.reshape({-1})),
                     .positions_N = rows_.own_rows(pass.positions_BT.reshape({-1}))});
}

at::Tensor Dropout::backward(const at::Tensor& dy_RD, const Pass& pass) const {
  if (!active(pass)) return dy_RD;
  at::Tensor masked_RD = dy_RD.clone();
  apply_(masked_RD, pass);
  return masked_RD;
}

}  // namespace quatrain
