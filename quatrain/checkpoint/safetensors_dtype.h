// SPDX-License-Identifier: Apache-2.0
// The dtypes of the safetensors format, in the order of the reference's enumeration: narrow first;
// writers sort tensors from the last to the first.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace quatrain {

struct SafetensorsDtype {
  std::string_view name;
  std::int64_t bits;
  std::optional<at::ScalarType> scalar;  // none: sub-byte, can be listed but not read
  int rank;                              // place in the order
};
const SafetensorsDtype* find_safetensors_dtype(std::string_view name);  // null: unknown
const SafetensorsDtype* find_safetensors_dtype(at::ScalarType scalar);  // null: has none

}  // namespace quatrain
