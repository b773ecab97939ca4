// SPDX-License-Identifier: Apache-2.0
// Finds tensors by name: 16 bytes a tensor, whatever the names (no quadratic case for crafted
// ones).
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "quatrain/checkpoint/safetensors.h"

namespace quatrain {

// Of one vector of entries, which is passed again to every call.
class NameIndex {
 public:
  NameIndex() = default;
  explicit NameIndex(const std::vector<TensorEntry>& tensors);
  const TensorEntry* find(const std::vector<TensorEntry>& tensors, std::string_view name) const;
  // One whose name occurs more than once, or null.
  const TensorEntry* repeated(const std::vector<TensorEntry>& tensors) const;

 private:
  struct Slot {
    std::uint64_t hash;
    std::size_t place;
  };
  std::vector<Slot> slots_;  // by (hash, name)
};

}  // namespace quatrain
