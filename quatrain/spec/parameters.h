// SPDX-License-Identifier: Apache-2.0
// The one list of a model's parameters, read by model building, initialisation, cost, memory,
// checkpoints and the hub.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/mesh/placement.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

enum class Init : std::uint8_t { kNormal, kNormalScaledByDepth, kZeros, kOnes };

// What a tensor-parallel rank's copy of a parameter meets of a micro-batch: rows of the residual
// stream (all of them, or its own under sequence parallelism), its share of heads, of the
// feed-forward width or of the vocabulary, or all of it. Copies that meet different things hold
// terms of a sum.
enum class Meets : std::uint8_t { kRows, kShare, kAll };

// Where the parameter lies in a Hugging Face file, when that differs from `name` and `shape`:
// GPT-2 stores q|k|v as one [in, out] matrix.
struct HubSource {
  std::string tensor;       // name in the file
  bool transposed = false;  // the file holds [in, out]
  std::int64_t begin = 0;   // rows of the (un-transposed) file tensor that are this parameter
  std::int64_t rows = 0;    // 0: all
  friend bool operator==(const HubSource&, const HubSource&) = default;
};

// One logical parameter: one name (Hugging Face's), one shape, one placement. q, k, v, gate, up and
// each expert's matrices are parameters of their own; fused storage is a view over several of
// them, so a fusion never changes initialisation, checkpoints or the optimizer.
struct ParameterInfo {
  std::string name;                 // "model.layers.3.self_attn.k_proj.weight"
  std::vector<std::int64_t> shape;  // global; matrices are [out, in]
  ShardSpec placement;              // over tp or etp x ep; ZeRO's cut comes on top, at rows
  Meets meets = Meets::kShare;
  std::int64_t layer = 0;  // -1: embedding; num layers: final norm and head
  Init init = Init::kNormal;
  double init_std = 0.02;    // already divided by sqrt(2 L) where scaled by depth
  bool decay = true;         // weight decay applies (matrices)
  bool trainable = true;     // false: no gradient, no state, no W, not in the norm
  std::int64_t expert = -1;  // routed expert that it belongs to; -1: none
  HubSource hub;

  std::int64_t numel() const;
};

// In the order of the forward pass; q, k, v and gate, up (and their biases) are neighbours so that
// they can share storage. A tied head has no entry of its own.
std::vector<ParameterInfo> parameters(const ModelSpec& model);
// Of the blocks that are wanted alone, and of both ends: experts make the whole list long.
using WantedBlock = std::function<bool(std::int64_t block)>;
std::vector<ParameterInfo> parameters(const ModelSpec& model, const WantedBlock& wanted);

// Sum of numel over `parameters(model)`.
std::int64_t num_parameters(const ModelSpec& model);

// Marks as not trainable every parameter that matches none of the patterns ("*" and "?" globs).
// No patterns: all stay trainable. Returns a problem for each pattern that matches nothing.
Problems set_trainable(std::vector<ParameterInfo>& list, const std::vector<std::string>& patterns);

}  // namespace quatrain
