// SPDX-License-Identifier: Apache-2.0
// One description of a model's work: what each operation of one micro-batch costs on one rank.
// Everything that predicts (dry run, MFU, memory, bytes on the wire, later time) reads this list,
// and the runtime is held to it: its counted FLOPs, stashed and sent bytes equal the sums exactly.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quatrain/base/units.h"
#include "quatrain/cost/expert_load.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/mesh/placement.h"
#include "quatrain/schedule/action.h"
#include "quatrain/spec/context_split.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/plan.h"
#include "quatrain/spec/stages.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain {

// One micro-batch as it runs, without packed documents (they only take FLOPs away).
struct WorkShape {
  std::int64_t batch = 1;
  std::int64_t seq = 0;        // tokens of a sequence that are this rank's
  std::int64_t whole_seq = 0;  // and all of them; 0: seq
  ContextSplit context = {};   // this rank's place along cp
  Dtype dtype = Dtype::kFloat32;
  Recompute recompute = Recompute::kNone;
  std::int64_t head_chunk_tokens = 512;
  std::vector<std::string> trainable;      // glob patterns; empty: all parameters
  TensorSplit split = {};                  // this rank's place along tp
  bool gather_again = false;               // Plan's
  int overlap_chunks = 1;                  // Plan's
  int ep_chunks = 1;                       // Plan's
  std::optional<ExpertLoad> experts = {};  // of each layer that has any; nothing: even_load()
  bool global_balance = false;  // routers' balance counts whole global batches, a step late
  bool fused_backward = true;   // a layer's weight half follows its input half; else any time later
};
// What the plan says of it, for rank `rank` of its mesh; `head_chunk_tokens` and `trainable` are
// left to set.
WorkShape work_shape(const Plan& plan, int rank);

// A tensor that is kept between passes.
struct StashCost {
  std::string what;  // the row's name in Stash
  Bytes bytes;
  bool until_weight;  // from the forward to the weight half; otherwise to the input half
};
// What the input half adds for the weight half.
struct LateStashCost {
  std::string what;
  Bytes bytes;
};

// Collectives of one kind that one pass of an operation makes.
struct OpWire {
  ActionKind pass;  // kForward, kBackwardInput or kBackwardWeight
  CollectiveKind operation;
  AxisSet axes;
  std::int64_t calls;
  Bytes bytes;  // that a rank sends in all of them
};

// FLOPs are whole numbers, exact in double below 2^53.
struct OpCost {
  std::string name;  // "norm1", "qkv", "attention", "out", "norm2", "up", "down", "head", ...
  std::int64_t parameters = 0;
  Flops forward{}, backward_input{}, backward_weight{};
  std::vector<StashCost> stash;     // kept by the forward
  std::vector<LateStashCost> late;  // kept by the input half for the weight half
  std::vector<OpWire> wire;
};
// Whether all that it makes goes into its block's result, which full recomputation does without.
bool makes_result(const OpCost& op);
struct UnitCost {
  std::string name;  // "embedding", "layers.3", "head"
  std::vector<OpCost> ops;
  std::int64_t parameters() const;
  Flops forward() const;
  Flops backward_input() const;
  Flops backward_weight() const;
  Bytes stash() const;         // after the forward
  Bytes weight_stash() const;  // after the input half
  std::vector<OpWire> wire(ActionKind pass) const;
};
// Units in forward order: embedding, blocks, head. Full recompute: blocks keep their input only and
// their input half contains the forward again, its collectives too, but for what makes_result().
// Throws ConfigError for trainable patterns that match nothing and for splits that check_split()
// refuses.
std::vector<UnitCost> walk(const ModelSpec& model, const WorkShape& shape);
// Those of some stages' layers; the others' places are empty.
std::vector<UnitCost> walk(const ModelSpec& model, const WorkShape& shape,
                           std::span<const StageLayers> stages);
// The same, of parameters that trained_parameters() (cost/local.h) has listed before.
std::vector<UnitCost> walk(const ModelSpec& model, const WorkShape& shape,
                           std::span<const StageLayers> stages,
                           std::span<const LocalParameter> parameters);

// FLOPs of matrix products of one optimizer step over `sequences` sequences (forward and both
// halves, without recomputation): the numerator of MFU.
Flops model_flops(const ModelSpec& model, std::int64_t sequences, std::int64_t seq,
                  const std::vector<std::string>& trainable = {});
// Model FLOPs per second over the peak: the share of the machine that did the model's own work.
double mfu(Flops model_flops, Seconds time, FlopsPerSecond peak);

// The most that one micro-batch has in flight beside its stash and the head's chunk of logits:
// inputs and outputs of the layer at work, gradients of the same shapes, and scratch inside
// operations. An upper bound, the only entry of the books that is not exact; it grows with
// positions, not with their square, the vocabulary or the depth. `widened`: bf16 on a CPU without
// bf16 units, where a product's operands and result are float32 for its time.
Bytes transient_bound(const ModelSpec& model, const WorkShape& shape, bool widened = false);

// One message between pipeline stages, an output or the gradient of an input: the residual stream's
// rows that this rank holds.
Bytes message_bytes(const ModelSpec& model, const WorkShape& shape);

// The head's chunk of logits: of this rank's share of the vocabulary.
Bytes logits_bytes(const ModelSpec& model, const WorkShape& shape);

// What `korthikanti_layer` assumes beyond 16 bit, a GELU MLP of 4h, MHA, the MLP's activation kept
// and norm statistics neglected: dropout masks of one byte kept, scores and their softmax kept.
struct PaperAssumptions {
  bool masks_stored = true;
  bool scores_stored = true;
  TensorSplit split = {};    // of even parts
  bool gather_again = true;  // with sequence parallelism
};
// Stash of one layer under the assumptions of Korthikanti et al. (arXiv:2205.05198, section 4),
// from the same table as walk()'s. Ops qkv, attention and out are the paper's "attention", up and
// down its MLP, norm1 and norm2 its layer norms.
std::vector<OpCost> korthikanti_layer(std::int64_t seq, std::int64_t batch, std::int64_t hidden,
                                      std::int64_t heads, const PaperAssumptions& assumptions);
// Its sum on one of t ranks. Alone: s b h (34 + 5 a s / h), their equation 2. Their table 2:
// tensor-parallel s b h (10 + 24 / t + 5 a s / (h t)), with sequence parallelism a t-th of equation
// 2; keeping gathered inputs instead, s b h (4 + 30 / t + 5 a s / (h t)).
Bytes korthikanti_layer_bytes(std::int64_t seq, std::int64_t batch, std::int64_t hidden,
                              std::int64_t heads, const PaperAssumptions& assumptions);

}  // namespace quatrain
