// SPDX-License-Identifier: Apache-2.0
// SGD with momentum in one pass, in the order of operations of torch.optim.SGD: decay is added to
// the gradient (coupled), dampening is 0.
#include "quatrain/kernels/dispatch.h"
#include "quatrain/kernels/flat_update.h"
#include "quatrain/kernels/parallel.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/kernels/scalar.h"

namespace quatrain::kernels {
namespace {

template <class W>
struct Factors {
  W grad_scale, weight_decay, momentum, lr;
  bool nesterov, first;
};

template <class T, class G, class W = Wide<T>>
void update(const FlatSpans<T, G, W>& x, W* __restrict momentum, const Factors<W>& f) {
  const W old_part = f.first ? W(0) : f.momentum;
#pragma GCC ivdep
  for (std::int64_t i = 0; i < x.size; ++i) {
    const W g = fused(f.weight_decay, x.master[i], static_cast<W>(load(x.grad[i])) * f.grad_scale);
    const W old = f.first ? W(0) : momentum[i];
    const W velocity = fused(old_part, old, g);
    momentum[i] = velocity;
    const W direction = f.nesterov ? fused(f.momentum, velocity, g) : velocity;
    const W next = x.master[i] - f.lr * direction;
    x.master[i] = next;
    x.value[i] = store<T>(next);
  }
}

template <class T, class G, class W = Wide<T>>
void update_plain(const FlatSpans<T, G, W>& x, const Factors<W>& f) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < x.size; ++i) {
    const W g = fused(f.weight_decay, x.master[i], static_cast<W>(load(x.grad[i])) * f.grad_scale);
    const W next = x.master[i] - f.lr * g;
    x.master[i] = next;
    x.value[i] = store<T>(next);
  }
}

}  // namespace

void sgd_(at::Tensor& value, at::Tensor& master, const at::Tensor& grad, at::Tensor& momentum,
          const SgdStep& step) {
  const bool plain = step.momentum == 0.0;
  if (plain) {
    check_flat({&value, &master, &grad}, {&master});
  } else {
    check_flat({&value, &master, &grad, &momentum}, {&master, &momentum});
  }
  for_each_span(value, master, grad, [&]<class T, class G>(TypeTag<T>, TypeTag<G>) {
    using W = Wide<T>;
    const Factors<W> f{static_cast<W>(step.grad_scale),
                       static_cast<W>(step.weight_decay),
                       static_cast<W>(step.momentum),
                       static_cast<W>(step.lr),
                       step.nesterov,
                       step.first};
    W* const velocity = plain ? nullptr : mutable_data<W>(momentum);
    const FlatSpans<T, G, W> all = flat_spans<T, G>(value, master, grad);
    parallel_ranges(all.size, kFlatGrain, [&](std::int64_t begin, std::int64_t end) {
      if (plain) {
        update_plain<T, G>(all.piece(begin, end), f);
      } else {
        update<T, G>(all.piece(begin, end), velocity + begin, f);
      }
    });
  });
}

}  // namespace quatrain::kernels
