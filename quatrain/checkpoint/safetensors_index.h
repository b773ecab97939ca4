// SPDX-License-Identifier: Apache-2.0
// Finds tensors by name: 16 bytes a tensor, whatever the names (no quadratic case for crafted
// ones).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
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

// What read_safetensors_header() reads, and the index that finding repeated names needs anyway.
struct IndexedHeader {
  SafetensorsHeader header;
  NameIndex index;  // of header.tensors
};
IndexedHeader read_indexed_header(std::span<const std::byte> file, bool allow_unknown_fields);

}  // namespace quatrain
