// SPDX-License-Identifier: Apache-2.0
// Calls and bytes on the wire, by group and operation: the shape of every prediction, and of what
// the counting communicator counts.
#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "quatrain/base/units.h"
#include "quatrain/cost/walk.h"
#include "quatrain/schedule/action.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/stages.h"

namespace quatrain {

struct WireCost {
  std::int64_t calls = 0;
  Bytes bytes{};
  WireCost& operator+=(WireCost more);
  friend bool operator==(WireCost, WireCost) = default;
};
using WireCosts = std::map<std::string, std::map<std::string, WireCost>>;  // by group and operation

void add(WireCosts& to, const WireCosts& more);
// Each entry by itself the larger, as metrics have it over ranks.
void keep_most(WireCosts& most, const WireCosts& sent);

// What this rank, which holds `stages`, sends over tp, over cp and between experts ("ep") in the
// layers of one step that walks `row`, evaluation left out. A fused backward's weight halves (B)
// find what the input half gathered; separate ones (W) do not, whatever `shape.fused_backward`.
WireCosts tensor_wire(const std::vector<Action>& row, const ModelSpec& model,
                      const WorkShape& shape, std::span<const StageLayers> stages);

// What it sends to other stages: message_bytes() a SEND, all lanes together as group "pp".
WireCosts message_wire(const std::vector<Action>& row, const ModelSpec& model,
                       const WorkShape& shape);

}  // namespace quatrain
