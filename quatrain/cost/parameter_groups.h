// SPDX-License-Identifier: Apache-2.0
// A unit's parameters as the walk deals them out: neighbours that are computed with as one.
#pragma once
#include <cstdint>
#include <span>

#include "quatrain/spec/tensor_split.h"

namespace quatrain {

struct Group {
  std::span<const LocalParameter> list;
  std::int64_t numel() const;
  std::int64_t trained_numel() const;
  bool trained() const { return trained_numel() > 0; }
};

// In the order in which parameters() lists them.
class Cursor {
 public:
  // Of one layer: -1 is the embedding.
  Cursor(std::span<const LocalParameter> all, std::int64_t layer);
  Group take(std::size_t count);
  void check_done() const;

 private:
  std::span<const LocalParameter> rest_;
};

}  // namespace quatrain
