// SPDX-License-Identifier: Apache-2.0
// What data parallelism costs: bytes that a rank keeps under ZeRO (Rajbhandari et al.,
// arXiv:1910.02054), and what a lowered row of actions sends and holds for a while. The row is the
// one that the executor walks: there is no second list of collectives. Units are made of what a
// rank of tp holds, so all of it differs along tp where cuts are uneven.
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
#include "quatrain/spec/tensor_split.h"

namespace quatrain {

// The schedulable piece of ZeRO: the parameters of the embedding, one block or the head, end to
// end.
struct ZeroUnit {
  std::string name;  // "embedding", "layers.3", "head"
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<bool> trainable;
  std::vector<int> summands;  // ranks of tp whose gradients add up; 1: this one's is whole
  std::int64_t numel() const;
  std::int64_t trainable_numel() const;
  std::int64_t trainable_numel(int of_summands) const;
  // Elements of each of `pieces` ranks, of values and of gradients.
  std::vector<std::int64_t> value_pieces(int pieces) const;
  std::vector<std::int64_t> grad_pieces(int pieces) const;
};
// Throws ConfigError for trainable patterns that match nothing and splits that do not fit.
std::vector<ZeroUnit> zero_units(const ModelSpec& model, const std::vector<std::string>& trainable,
                                 const TensorSplit& split = {});
// What each layer asks of them; a tied head reads and trains the embedding's unit as well.
StageUnits stage_units(const ModelSpec& model, const std::vector<ZeroUnit>& units);

// A rank's place: `mesh.rank()` along dp_shard, dp_replicate and tp, for which the units are.
struct ZeroShape {
  std::vector<ZeroUnit> units;
  int zero_stage = 0;
  Dtype dtype = Dtype::kFloat32;
  Mesh mesh;
  // Ranks that a unit is cut among: dp_shard, or 1 in stage 0.
  int pieces() const;
};
ZeroShape zero_shape(const ModelSpec& model, const Plan& plan,
                     const std::vector<std::string>& trainable, int rank);

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
// all of tp holds, in another (group "tp_repeat") those of repeated key and value heads.
WireCosts zero_wire(const std::vector<Action>& row, const ZeroShape& shape);
// All that it sends: zero_wire() and tensor_wire().
WireCosts step_wire(const std::vector<Action>& row, const ModelSpec& model, const WorkShape& work,
                    const ZeroShape& shape);

// The most that the row holds at once beside what a rank keeps, each by itself.
struct ZeroPeaks {
  Bytes buffers;  // gathered units (stage 3) and the head's chunk of logits, `head`, in its forward
  Bytes whole_grads;  // gradients not reduced yet, stages 2 and 3
};
ZeroPeaks zero_peaks(const std::vector<Action>& row, const ZeroShape& shape,
                     const StageUnits& layers, Bytes head);

// The schedule that a plan runs: its generator, the optimizer's step, and ZeRO's actions where
// ranks reduce gradients.
Schedule lowered_schedule(const ModelSpec& model, const Plan& plan,
                          const std::vector<std::string>& trainable);

}  // namespace quatrain
