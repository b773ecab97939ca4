// SPDX-License-Identifier: Apache-2.0
// Every choice that decides how a model runs on a cluster. Plain data: a file, a diff, a hash.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

// kSelective: norm outputs are recomputed in the input half; kFull: whole blocks are.
enum class Recompute : std::uint8_t { kNone, kSelective, kFull };
std::string_view name(Recompute recompute);  // "none", "selective", "full"
std::optional<Recompute> recompute_from_name(std::string_view text);

struct Plan {
  Mesh::Degrees degrees{1, 1, 1, 1, 1, 1, 1, 1, 1};
  std::vector<Axis> axis_order{Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp};
  std::int64_t seq_len = 0;
  std::int64_t microbatch_size = 1;   // sequences for each rank and micro-batch
  std::int64_t num_microbatches = 1;  // for each optimizer step and dp rank
  std::vector<int> stage_begin{0};    // first layer of each stage
  std::string schedule = "1f1b";
  int chunks = 1;            // stages a rank
  int zero_stage = 0;        // 0..3 (Rajbhandari et al., arXiv:1910.02054)
  int prefetch = 1;          // units gathered ahead, stage 3
  bool reduce_once = false;  // stages 2, 3: gradients stay whole until the last micro-batch
  bool gather_once = false;  // stage 3: a unit stays gathered while the row stays in its stage
  bool sequence_parallel = false;
  bool gather_again = false;  // sequence_parallel: weight halves gather what they read once more
  int overlap_chunks = 1;     // pieces of a row-parallel product, each summed under the next
  int ep_chunks = 1;  // pieces of the rows for a layer's experts, each computed under the next
  std::string cp_style = "ring";  // one of kCpStyles
  int cp_heads = 1;               // hybrid: neighbours that exchange heads
  bool cp_zigzag = true;
  Recompute recompute = Recompute::kNone;
  Dtype dtype = Dtype::kFloat32;
  friend bool operator==(const Plan&, const Plan&) = default;
};

// Blocks of each stage by count alone: equal, or one more in the first ones. Stages beyond the
// number of blocks are empty.
std::vector<std::int64_t> even_layers(std::int64_t layers, int stages);
// Plan::stage_begin for so many blocks in each stage; 0: the stage is empty.
std::vector<int> first_layers(const std::vector<std::int64_t>& layers_per_stage);

// Canonical JSON (sorted keys) and its stable hash, 16 hex digits: printed in logs and checkpoints.
std::string to_json(const Plan& plan);
Plan plan_from_json(std::string_view text);  // throws ConfigError
std::string hash(const Plan& plan);

}  // namespace quatrain
