// SPDX-License-Identifier: Apache-2.0
// AdamW in one pass (Loshchilov & Hutter, arXiv:1711.05101, Algorithm 2), in the order of
// operations of torch.optim.AdamW: decay, moments, then the step with the bias-corrected root.
#include <cmath>

#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/flat_update.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/scalar.h"

namespace quatrain::kernels {
namespace {

template <class W>
struct Factors {
  W grad_scale, keep, beta1_rest, beta2, beta2_rest, step_size, root_correction, eps;
};

template <class W>
Factors<W> factors(const AdamWStep& s) {
  const double correction1 = 1.0 - std::pow(s.beta1, static_cast<double>(s.step));
  const double correction2 = 1.0 - std::pow(s.beta2, static_cast<double>(s.step));
  return {static_cast<W>(s.grad_scale),           static_cast<W>(1.0 - s.lr * s.weight_decay),
          static_cast<W>(1.0 - s.beta1),          static_cast<W>(s.beta2),
          static_cast<W>(1.0 - s.beta2),          static_cast<W>(s.lr / correction1),
          static_cast<W>(std::sqrt(correction2)), static_cast<W>(s.eps)};
}

// T: the value's type; G: the gradient's.
template <class T, class G, class W = Wide<T>>
void update(const FlatSpans<T, G, W>& x, W* __restrict m, W* __restrict v, const Factors<W>& f) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < x.size; ++i) {
    const W g = static_cast<W>(load(x.grad[i])) * f.grad_scale;
    const W first = fused(f.beta1_rest, g - m[i], m[i]);
    const W second = fused(f.beta2_rest * g, g, v[i] * f.beta2);
    m[i] = first;
    v[i] = second;
    const W root = std::sqrt(second) / f.root_correction + f.eps;
    const W next = x.master[i] * f.keep - f.step_size * (first / root);
    x.master[i] = next;
    x.value[i] = store<T>(next);
  }
}

}  // namespace

void adamw_(at::Tensor& value, at::Tensor& master, const at::Tensor& grad, at::Tensor& m,
            at::Tensor& v, const AdamWStep& step) {
  check_flat({&value, &master, &grad, &m, &v}, {&master, &m, &v});
  for_each_span(value, master, grad, [&]<class T, class G>(TypeTag<T>, TypeTag<G>) {
    using W = Wide<T>;
    const Factors<W> f = factors<W>(step);
    W* const first = mutable_data<W>(m);
    W* const second = mutable_data<W>(v);
    const FlatSpans<T, G, W> all = flat_spans<T, G>(value, master, grad);
    parallel_ranges(all.size, kFlatGrain, [&](std::int64_t begin, std::int64_t end) {
      update<T, G>(all.piece(begin, end), first + begin, second + begin, f);
    });
  });
}

}  // namespace quatrain::kernels
