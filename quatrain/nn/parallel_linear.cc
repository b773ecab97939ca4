// SPDX-License-Identifier: Apache-2.0
#include "quatrain/nn/parallel_linear.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "quatrain/kernels/matmul.h"

namespace quatrain {
namespace {

std::int64_t rows_of(const Pass& pass) { return pass.positions_BT.numel(); }

}  // namespace

ColumnLinear::ColumnLinear(const TensorParallel& tp, const ParamRange& weight,
                           const ParamRange& bias, std::string_view kept)
    : tp_(tp), linear_(weight, bias), kept_(kept) {}

at::Tensor ColumnLinear::forward(const at::Tensor& x_RI, const Pass& pass, Stash& stash,
                                 bool keep) const {
  const at::Tensor x_NI = tp_.to_whole(x_RI, rows_of(pass)).wait();
  if (keep) stash.save(tp_.options().gather_again ? x_RI : x_NI, Until::kWeight, kept_);
  return linear_.forward(x_NI);
}

at::Tensor ColumnLinear::backward_input(const at::Tensor& dy_NO, const Fill& fill) const {
  Moving dx_RI = tp_.to_rows(linear_.backward_input(dy_NO));
  if (tp_.sums()) fill();
  return dx_RI.wait();
}

void ColumnLinear::backward_weight(const at::Tensor& dy_NO, const Pass& pass, Stash& stash) const {
  at::Tensor x_NI;
  if (needs_x()) {
    x_NI = stash.take(kept_);
    if (tp_.options().gather_again) x_NI = tp_.to_whole(x_NI, rows_of(pass)).wait();
  }
  linear_.backward_weight(*pass.grads, dy_NO, x_NI);
}

RowLinear::RowLinear(const TensorParallel& tp, const ParamRange& weight, const ParamRange& bias,
                     std::string_view kept)
    : tp_(tp), weight_(weight), bias_(bias), linear_(weight, bias), terms_(weight), kept_(kept) {}

at::Tensor RowLinear::forward(const at::Tensor& x_NI) const {
  if (!tp_.sums()) return linear_.forward(x_NI);
  at::Tensor y_RO = summed(x_NI);
  if (bias_.present()) y_RO.add_(bias_.value());
  return y_RO;
}

at::Tensor RowLinear::forward_onto(const at::Tensor& residual_RO, const at::Tensor& x_NI) const {
  if (!tp_.sums()) return linear_.forward_onto(residual_RO, x_NI);
  return forward(x_NI).add_(residual_RO);
}

at::Tensor RowLinear::summed(const at::Tensor& x_NI) const {
  const int chunks = tp_.options().overlap_chunks;
  if (chunks > 1) return summed_in_chunks(x_NI, chunks);
  return tp_.to_rows(terms_.forward(x_NI)).wait();
}

// A chunk is the same part of every rank's rows, so that its sum is a part of this rank's.
at::Tensor RowLinear::summed_in_chunks(const at::Tensor& x_NI, int chunks) const {
  const int owners = tp_.cuts_rows() ? tp_.degree() : 1;
  std::vector<Moving> sums;
  for (int chunk = 0; chunk < chunks; ++chunk) {
    std::vector<Range> parts;
    std::vector<std::int64_t> sizes;
    std::int64_t total = 0;
    for (int owner = 0; owner < owners; ++owner) {
      const Range own = piece(x_NI.size(0), owners, owner);
      const Range part = piece(own.size(), chunks, chunk);
      parts.push_back({own.begin + part.begin, own.begin + part.end});
      sizes.push_back(part.size());
      total += part.size();
    }
    if (total == 0) continue;
    const at::Tensor w_OI = weight_.value();
    at::Tensor terms_MO = at::empty({total, w_OI.size(0)}, x_NI.options());
    std::int64_t at = 0;
    for (const Range& part : parts) {
      if (part.size() == 0) continue;
      at::Tensor rows = terms_MO.narrow(0, at, part.size());
      const at::Tensor x = x_NI.narrow(0, part.begin, part.size());
      kernels::matmul_out(rows, kernels::n(x), kernels::t(w_OI));
      at += part.size();
    }
    sums.push_back(tp_.to_rows(terms_MO, sizes));
  }
  std::vector<at::Tensor> pieces;
  for (Moving& sum : sums) pieces.push_back(sum.wait());
  return at::cat(pieces);
}

at::Tensor RowLinear::backward_input(const at::Tensor& dy_RO, const Pass& pass, Stash& stash,
                                     const Fill& fill) const {
  Moving whole = tp_.to_whole(dy_RO, rows_of(pass));
  if (tp_.cuts_rows()) fill();
  const at::Tensor dy_NO = whole.wait();
  if (needs_dy()) stash.save(keeps_whole(pass) ? dy_NO : dy_RO, Until::kWeight, kept_);
  return linear_.backward_input(dy_NO);
}

void RowLinear::backward_weight(const at::Tensor& x_NI, const Pass& pass, Stash& stash) const {
  const at::Tensor dy = stash.take(kept_);
  const bool whole = keeps_whole(pass);
  if (weight_.any_trainable()) {
    const at::Tensor dy_NO = whole ? dy : tp_.to_whole(dy, rows_of(pass)).wait();
    pass.grads->outer(weight_, dy_NO, x_NI);
  }
  if (bias_.any_trainable()) pass.grads->rows(bias_, whole ? tp_.own_rows(dy) : dy);
}

}  // namespace quatrain
