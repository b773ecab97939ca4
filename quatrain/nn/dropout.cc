// SPDX-License-Identifier: Apache-2.0
// Keys of a micro-batch's dropout, from what its pass carries.
#include "quatrain/nn/dropout.h"

#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

// Of all rows of the micro-batch.
kernels::DropoutKey key_of(std::int64_t site, const Pass& pass) {
  CHECK(pass.sample_ids_B.defined(), "random numbers of rows need the ids of samples");
  const at::Tensor samples_BT = pass.sample_ids_B.unsqueeze(1).expand_as(pass.positions_BT);
  return {.seed = pass.seed,
          .step = pass.step,
          .site = site,
          .samples_N = samples_BT.reshape({-1}),
          .positions_N = pass.positions_BT.reshape({-1})};
}

// Of this rank's rows of the residual stream.
kernels::DropoutKey own_key(std::int64_t site, const Pass& pass, const TensorParallel& rows) {
  kernels::DropoutKey key = key_of(site, pass);
  key.samples_N = rows.own_rows(key.samples_N);
  key.positions_N = rows.own_rows(key.positions_N);
  return key;
}

}  // namespace

void Dropout::apply_(at::Tensor& x_RD, const Pass& pass) const {
  if (!active(pass)) return;
  kernels::dropout_(x_RD, p_, own_key(site_, pass, rows_));
}

at::Tensor Dropout::backward(const at::Tensor& dy_RD, const Pass& pass) const {
  if (!active(pass)) return dy_RD;
  at::Tensor masked_RD = dy_RD.clone();
  apply_(masked_RD, pass);
  return masked_RD;
}

at::Tensor RouterJitter::read(const at::Tensor& x_ND, const Pass& pass) const {
  if (!active(pass)) return x_ND;
  at::Tensor jittered_ND = x_ND.clone();
  kernels::jitter_(jittered_ND, eps_, key_of(site_, pass));
  return jittered_ND;
}

void RouterJitter::backward_(at::Tensor& dx_RD, const Pass& pass) const {
  if (active(pass)) kernels::jitter_(dx_RD, eps_, own_key(site_, pass, rows_));
}

}  // namespace quatrain
