// SPDX-License-Identifier: Apache-2.0
// A unit's stash as bytes by row: what a stash holds, and what cost/ says it does.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "quatrain/cost/walk.h"
#include "quatrain/nn/layer.h"

namespace quatrain {

using Rows = std::map<std::string, std::int64_t>;

inline Rows rows_of(const Stash& stash) {
  Rows rows;
  for (const Saved& saved : stash.saved()) {
    rows[std::string(saved.what)] = static_cast<std::int64_t>(saved.tensor.storage().nbytes());
  }
  for (const Stash& child : stash.children()) {
    for (const auto& [what, bytes] : rows_of(child)) rows[what] = bytes;
  }
  return rows;
}

inline Rows rows_after_forward(const UnitCost& unit) {
  Rows rows;
  for (const OpCost& op : unit.ops) {
    for (const StashCost& row : op.stash) rows[row.what] = row.bytes.value;
  }
  return rows;
}

inline Rows rows_after_input_half(const UnitCost& unit) {
  Rows rows;
  for (const OpCost& op : unit.ops) {
    for (const StashCost& row : op.stash) {
      if (row.until_weight) rows[row.what] = row.bytes.value;
    }
    for (const LateStashCost& row : op.late) rows[row.what] = row.bytes.value;
  }
  return rows;
}

}  // namespace quatrain
