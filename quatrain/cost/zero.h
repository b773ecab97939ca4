// SPDX-License-Identifier: Apache-2.0
// What one rank of a geometry keeps and sends for its weights: bytes under ZeRO (Rajbhandari et
// al., arXiv:1910.02054) and the collectives of a lowered row. The row is the one that the executor
// walks: there is no second list of collectives. Units are made of what the rank's stages and its
// share of the matrices hold, so ranks differ along pp, along tp where cuts are uneven, and along
// dp_shard by their pieces; of experts along ep, etp and edp_shard.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quatrain/base/units.h"
#include "quatrain/cost/wire.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/schedule/zero.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/plan.h"
#include "quatrain/spec/stages.h"

namespace quatrain {

// A UnitSpec's parameters, end to end.
struct ZeroUnit {
  std::string name;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<bool> trainable;
  std::vector<int> summands;  // ranks of tp whose gradients add up; 1: this one's is whole
  std::vector<std::int64_t> value_pieces, grad_pieces;  // elements of each of its pieces
  bool trained = false;                                 // UnitSpec's
  bool of_experts = false;                              // cut and reduced in the expert view
  // Whether it is cut at all.
  bool cut() const { return value_pieces.size() > 1; }
  std::int64_t numel() const;
  std::int64_t trainable_numel() const;
  std::int64_t trainable_numel(int of_summands) const;
};

// A rank and what it holds. It stays right for another rank of `mesh` at the same place along pp
// and tp, and along ep and etp.
struct ZeroShape {
  std::vector<StageLayers> stages;
  std::vector<ZeroUnit> units;  // in the order of unit_specs()
  int zero_stage = 0;
  Dtype dtype = Dtype::kFloat32;
  Mesh mesh;
  // Whether units are cut, where their view has shards: of dp_shard, or edp_shard, ranks each.
  bool sharded = false;
  // This rank's piece of a unit.
  std::size_t piece(const ZeroUnit& unit) const;
};
// `rank_of_stage`: of the plan's schedule; empty: one pipeline rank holds all. Throws ConfigError
// for trainable patterns that match nothing and splits that do not fit.
ZeroShape zero_shape(const ModelSpec& model, const Plan& plan,
                     const std::vector<std::string>& trainable, int rank,
                     const std::vector<int>& rank_of_stage = {});

// What the layers of each of its stages ask of its units, in the order of `shape.stages`. A tied
// head reads and trains the embedding's unit as well, or its own copy of the table.
std::vector<StageUnits> stage_units(const ModelSpec& model, const ZeroShape& shape);

// Bytes a rank keeps all the time: params in the plan's dtype, grads and moments (adamw: two; sgd:
// one when momentum > 0) wide, a wide master when that dtype is not wide. Frozen parameters have a
// value only. ZeRO 1 cuts the optimizer's state, 2 gradients as well, 3 parameters too.
struct StateBytes {
  Bytes params, grads, optimizer;
};
StateBytes state_bytes(const ZeroShape& shape, const std::string& optimizer, double momentum);

// Bytes that a parameter takes while it is trained. Ours in bf16 with AdamW: 2 + 4 + 12.
struct BytesPerParameter {
  std::int64_t value = 2;
  std::int64_t grad = 4;
  std::int64_t optimizer = 12;  // master and two moments
};
// What one of `ranks` keeps of `parameters` cut evenly (Rajbhandari et al., figure 1: 2 + 2 + 12
// bytes); a bound below for pieces that rows make uneven.
double even_zero_bytes(double parameters, int ranks, int zero_stage,
                       const BytesPerParameter& bytes);

// What this rank sends for weights and gradients in one step that walks `row` (with_zero()'s),
// control traffic left out. A gather or reduce of Psi elements sends (n-1) pieces padded to the
// largest. Where tp leaves terms of gradients, a unit's are summed first: in one call those that
// all of tp holds, in another (group "tp_repeat") those of repeated key and value heads. Units that
// are whole while others are cut are reduced once a step.
// REDUCE_TIED sums this rank's piece of the table's gradient over two ranks (group "pp").
WireCosts zero_wire(const std::vector<Action>& row, const ZeroShape& shape);
// All that it sends: zero_wire(), tensor_wire() and message_wire().
WireCosts step_wire(const std::vector<Action>& row, const ModelSpec& model, const WorkShape& work,
                    const ZeroShape& shape);

}  // namespace quatrain
