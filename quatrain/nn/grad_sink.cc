// SPDX-License-Identifier: Apache-2.0
// The fast sink: gradients are summed where they lie. A range is cut into runs of trainable
// neighbours, one GEMM each; mostly that is one for q, k, v.
#include <algorithm>

#include "quatrain/kernels/matmul.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/check.h"
#include "quatrain/nn/layer.h"
#include "quatrain/nn/vocab_share.h"

namespace quatrain {
namespace {

// Calls f(grad of the run, first row of the run within the range, rows of the run).
template <class F>
void for_trainable_runs(const ParamRange& range, const F& f) {
  std::int64_t row = 0;
  for (Param* p = range.first; p <= range.last;) {
    if (!p->info.trainable) {
      row += p->local_shape[0];
      ++p;
      continue;
    }
    Param* last = p;
    while (last < range.last && (last + 1)->info.trainable) ++last;
    at::Tensor grad = range.unit->fused_grad(*p, *last);
    f(grad, row, grad.size(0));
    row += grad.size(0);
    p = last + 1;
  }
}

at::Tensor columns(const at::Tensor& x, std::int64_t begin, std::int64_t count) {
  return count == x.size(1) ? x : x.narrow(1, begin, count);
}

}  // namespace

bool ParamRange::any_trainable() const {
  return present() && std::any_of(first, last + 1, [](const Param& p) { return p.info.trainable; });
}

void AccumulatingSink::outer(const ParamRange& p, const at::Tensor& dy_NO, const at::Tensor& x_NI) {
  for_trainable_runs(p, [&](at::Tensor& grad, std::int64_t begin, std::int64_t count) {
    kernels::matmul_add(grad, kernels::t(columns(dy_NO, begin, count)), kernels::n(x_NI));
  });
}

void AccumulatingSink::rows(const ParamRange& p, const at::Tensor& g_ND) {
  for_trainable_runs(p, [&](at::Tensor& grad, std::int64_t begin, std::int64_t count) {
    kernels::add_rows(grad, columns(g_ND, begin, count));
  });
}

void AccumulatingSink::indexed(const ParamRange& p, const at::Tensor& ids_N,
                               const at::Tensor& dy_ND) {
  CHECK(p.first == p.last, "\"{}\" is gathered together with its neighbours", p.first->info.name);
  if (!p.first->info.trainable) return;
  kernels::embedding_add_grad(p.first->grad, ids_N, dy_ND, vocab_share(p));
}

}  // namespace quatrain
