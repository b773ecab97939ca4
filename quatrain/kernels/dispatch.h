// SPDX-License-Identifier: Apache-2.0
// From a tensor's dtype to the template of a kernel: float, double and c10::BFloat16, nothing else.
#pragma once
#include <ATen/core/Tensor.h>

#include "quatrain/kernels/check.h"
#include "quatrain/kernels/scalar.h"

namespace quatrain::kernels {

inline at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

template <class T>
struct TypeTag {
  using type = T;
};

// Returns f(TypeTag<T>{}) for the T of `dtype`:
//   dispatch(x.scalar_type(), [&](auto tag) { using T = typename decltype(tag)::type; ... });
template <class F>
auto dispatch(at::ScalarType dtype, F&& f) {
  switch (dtype) {
    case at::kFloat:
      return f(TypeTag<float>{});
    case at::kDouble:
      return f(TypeTag<double>{});
    case at::kBFloat16:
      return f(TypeTag<c10::BFloat16>{});
    default:
      break;
  }
  CHECK(false, "kernels run in float32, float64 and bfloat16, not in {}", c10::toString(dtype));
  return f(TypeTag<float>{});
}

template <class T>
const T* data(const at::Tensor& x) {
  return static_cast<const T*>(x.const_data_ptr());
}
template <class T>
T* mutable_data(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

}  // namespace quatrain::kernels
