// SPDX-License-Identifier: Apache-2.0
// Attention by its definition, with [T, S] scores and an explicit mask. Made of tensor operations
// alone, so that autograd can differentiate it.
#include <ATen/ops/arange.h>

#include <limits>

#include "quatrain/kernels/attention_tiles.h"

namespace quatrain::kernels {

namespace {
// bool [B or 1, 1, T, S].
at::Tensor visible(const AttentionSizes& n, const AttentionMask& mask) {
  const at::Tensor key = at::arange(n.S, at::kLong).view({1, n.S});
  const std::int64_t first = first_query(n.T, n.S, mask);
  const at::Tensor query = at::arange(first, first + n.T, at::kLong).view({n.T, 1});
  at::Tensor seen = key.le(query);
  if (mask.window > 0) seen = seen.logical_and(query.sub(key).lt(mask.window));
  seen = seen.view({1, 1, n.T, n.S});
  if (!mask.documents_BS.defined()) return seen;
  const at::Tensor of_key = mask.documents_BS.view({n.B, 1, 1, n.S});
  const at::Tensor of_query =
      mask.documents_BT.defined() ? mask.documents_BT : mask.documents_BS.narrow(1, first, n.T);
  return seen.logical_and(of_key.eq(of_query.unsqueeze(1).unsqueeze(3)));
}

at::Tensor heads_first(const at::Tensor& x_BTHd, std::int64_t repeat) {
  return x_BTHd.repeat_interleave(repeat, 2).transpose(1, 2);
}
}  // namespace

AttentionOut attention_reference(const at::Tensor& q_BTHd, const at::Tensor& k_BSKd,
                                 const at::Tensor& v_BSKd, double scale,
                                 const AttentionMask& mask) {
  const AttentionSizes n = attention_sizes(q_BTHd, k_BSKd, v_BSKd);
  const at::ScalarType type = wide(q_BTHd.scalar_type());
  const at::Tensor q = heads_first(q_BTHd.to(type), 1);
  const at::Tensor k = heads_first(k_BSKd.to(type), n.group());
  const at::Tensor v = heads_first(v_BSKd.to(type), n.group());
  const at::Tensor scores =
      q.matmul(k.transpose(2, 3))
          .mul(scale)
          .masked_fill(visible(n, mask).logical_not(), -std::numeric_limits<double>::infinity());
  const at::Tensor lse = scores.logsumexp(-1);
  const at::Tensor shift = lse.unsqueeze(-1).clamp_min(-1e30);  // of a query that sees no key: any
  const at::Tensor out = scores.sub(shift).exp().matmul(v).transpose(1, 2);
  return {out.to(q_BTHd.scalar_type()).contiguous(), lse};
}

}  // namespace quatrain::kernels
