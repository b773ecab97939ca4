// SPDX-License-Identifier: Apache-2.0
// Sums over a unit's operations, and how rows of the stash table become bytes of operations.
#include <algorithm>
#include <iterator>

#include "quatrain/base/check.h"
#include "quatrain/cost/stash_table.h"
#include "quatrain/cost/walk.h"

namespace quatrain {
namespace {

std::int64_t bytes_of(const StashRow& row, Dtype dtype) {
  switch (row.width) {
    case StashWidth::kCompute:
      return row.elements * size_of(dtype);
    case StashWidth::kWide:
      return row.elements * size_of(wide(dtype));
    case StashWidth::kByte:
      return row.elements;
    case StashWidth::kIndex:
      return row.elements * static_cast<std::int64_t>(sizeof(std::int64_t));
  }
  return 0;
}

template <class Value, class Member>
Value sum(const std::vector<OpCost>& ops, Member member) {
  Value total{};
  for (const OpCost& op : ops) total += op.*member;
  return total;
}

}  // namespace

void add_rows(std::vector<OpCost>& ops, std::span<const StashRow> rows, Dtype dtype) {
  for (const StashRow& row : rows) {
    const auto op =
        std::find_if(ops.begin(), ops.end(), [&](const OpCost& o) { return o.name == row.op; });
    CHECK(op != ops.end(), "stash row {} belongs to no operation", row.what);
    const Bytes bytes{bytes_of(row, dtype)};
    if (row.life == StashLife::kLate) {
      op->late.push_back({std::string(row.what), bytes});
    } else {
      op->stash.push_back({std::string(row.what), bytes, row.life == StashLife::kWeight});
    }
  }
}

std::int64_t UnitCost::parameters() const { return sum<std::int64_t>(ops, &OpCost::parameters); }
Flops UnitCost::forward() const { return sum<Flops>(ops, &OpCost::forward); }
Flops UnitCost::backward_input() const { return sum<Flops>(ops, &OpCost::backward_input); }
Flops UnitCost::backward_weight() const { return sum<Flops>(ops, &OpCost::backward_weight); }

Bytes UnitCost::stash() const {
  Bytes total{};
  for (const OpCost& op : ops) {
    for (const StashCost& row : op.stash) total += row.bytes;
  }
  return total;
}

Bytes UnitCost::weight_stash() const {
  Bytes total{};
  for (const OpCost& op : ops) {
    for (const StashCost& row : op.stash) total += row.until_weight ? row.bytes : Bytes{};
    for (const LateStashCost& row : op.late) total += row.bytes;
  }
  return total;
}

std::vector<OpWire> UnitCost::wire(ActionKind pass) const {
  std::vector<OpWire> result;
  for (const OpCost& op : ops) {
    std::copy_if(op.wire.begin(), op.wire.end(), std::back_inserter(result),
                 [&](const OpWire& sent) { return sent.pass == pass; });
  }
  return result;
}

}  // namespace quatrain
