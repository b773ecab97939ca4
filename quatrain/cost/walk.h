// SPDX-License-Identifier: Apache-2.0
// One description of a model's work: what each operation of one micro-batch costs. Everything that
// predicts (dry run, MFU, memory, later bytes on the wire and time) reads this list, and the runtime
// is held to it: its counted FLOPs and stashed bytes equal these sums exactly.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quatrain/base/units.h"
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

// One micro-batch as it runs.
struct WorkShape {
  std::int64_t batch = 1;
  std::int64_t seq = 0;
  Dtype dtype = Dtype::kFloat32;
  Recompute recompute = Recompute::kNone;
  std::int64_t head_chunk_tokens = 512;
};

// A tensor that is kept between passes.
struct StashCost {
  std::string what;    // the row's name in Stash
  Bytes bytes;
  bool until_weight;   // from the forward to the weight half; otherwise to the input half
};
// What the input half adds for the weight half.
struct LateStashCost {
  std::string what;
  Bytes bytes;
};

struct OpCost {
  std::string name;          // "qkv", "attention", "out", "up", "down", "head", ...
  std::int64_t parameters = 0;
  Flops forward{}, backward_input{}, backward_weight{};
  std::vector<StashCost> stash;     // kept by the forward
  std::vector<LateStashCost> late;  // kept by the input half for the weight half
};
struct UnitCost {
  std::string name;          // "embedding", "layers.3", "head"
  std::vector<OpCost> ops;
  std::int64_t parameters() const;
  Flops forward() const, backward_input() const, backward_weight() const;
  Bytes stash() const;           // after the forward
  Bytes weight_stash() const;    // after the input half
};
// Units in forward order: embedding, blocks, head. Full recompute: blocks keep their input only and
// their input half contains the forward again.
std::vector<UnitCost> walk(const ModelSpec& model, const WorkShape& shape);

// FLOPs of matrix products of one optimizer step over `sequences` sequences (forward and both
// halves, without recomputation): the numerator of MFU.
Flops model_flops(const ModelSpec& model, std::int64_t sequences, std::int64_t seq);

// Activation bytes of one layer under the assumptions of Korthikanti et al. (arXiv:2205.05198,
// equation 2): 16 bit, GELU MLP of 4h, MHA, dropout masks of one byte, scores kept. The same table
// as walk()'s with those assumptions switched on: s b h (34 + 5 a s / h).
struct PaperAssumptions {
  bool masks_stored = true;
  bool scores_stored = true;
};
Bytes korthikanti_layer_bytes(std::int64_t seq, std::int64_t batch, std::int64_t hidden,
                              std::int64_t heads, const PaperAssumptions& assumptions);

// Bytes a rank keeps all the time.
struct StateBytes {
  Bytes params, grads, optimizer;
};
StateBytes state_bytes(const ModelSpec& model, const Plan& plan, const std::string& optimizer,
                       double momentum, const std::vector<std::string>& trainable);

}  // namespace quatrain
