// SPDX-License-Identifier: Apache-2.0
// What the optimizers' one-pass updates share: flat spans of value, master and gradient, and the
// dispatch over their types. The gradient is wide or of the value's type.
#pragma once
#include <initializer_list>

#include "quatrain/kernels/dispatch.h"

namespace quatrain::kernels {

inline constexpr std::int64_t kFlatGrain = 16384;

// value and master may be one storage (float32, float64): then both point to the same elements, and
// an element is written twice with the same bits.
template <class T, class G, class W>
struct FlatSpans {
  T* value;
  W* master;
  const G* grad;
  std::int64_t size;
  FlatSpans piece(std::int64_t begin, std::int64_t end) const {
    return {value + begin, master + begin, grad + begin, end - begin};
  }
};

template <class T, class G>
FlatSpans<T, G, Wide<T>> flat_spans(const at::Tensor& value, const at::Tensor& master,
                                    const at::Tensor& grad) {
  return {mutable_data<T>(value), mutable_data<Wide<T>>(master), data<G>(grad), value.numel()};
}

// All contiguous and of one size; those of `wide_ones` in wide(value's dtype). value comes first.
inline void check_flat(std::initializer_list<const at::Tensor*> all,
                       std::initializer_list<const at::Tensor*> wide_ones) {
  const at::Tensor& value = **all.begin();
  for (const at::Tensor* x : all) {
    CHECK(x->is_contiguous(), "an optimizer's span is not contiguous");
    CHECK(x->numel() == value.numel(), "spans of {} and {} elements", x->numel(), value.numel());
  }
  for (const at::Tensor* x : wide_ones) {
    CHECK(x->scalar_type() == wide(value.scalar_type()), "optimizer state in {} for values in {}",
          c10::toString(x->scalar_type()), c10::toString(value.scalar_type()));
  }
}

// Calls f(TypeTag<value's type>, TypeTag<gradient's type>).
template <class F>
void for_each_span(const at::Tensor& value, const at::Tensor& master, const at::Tensor& grad,
                   const F& f) {
  dispatch(value.scalar_type(), [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (grad.scalar_type() == master.scalar_type()) {
      f(TypeTag<T>{}, TypeTag<Wide<T>>{});
    } else {
      CHECK(grad.scalar_type() == value.scalar_type(), "a gradient in {} for values in {}",
            c10::toString(grad.scalar_type()), c10::toString(value.scalar_type()));
      f(TypeTag<T>{}, TypeTag<T>{});
    }
  });
}

}  // namespace quatrain::kernels
