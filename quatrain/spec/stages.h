// SPDX-License-Identifier: Apache-2.0
// The model cut into pipeline stages, and a rank's stages into the units that ZeRO gathers and
// reduces: read by model building and by cost, so that both hold the same.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/spec/tensor_split.h"

namespace quatrain {

// One stage is a run of the model's layers: 0 is the embedding, 1 to L the blocks, L + 1 the head.
struct StageLayers {
  int stage = 0;
  int begin = 0, end = 0;  // layers [begin, end); none: it passes on what it gets
  int size() const { return end - begin; }
  friend bool operator==(StageLayers, StageLayers) = default;
};

// Of Plan::stage_begin: the embedding runs with the first stage's blocks, the head with the last
// one's.
std::vector<StageLayers> stage_layers(std::int64_t blocks, const std::vector<int>& stage_begin);

// Those of pipeline rank `rank`, in order. `rank_of_stage`: a replica's of a schedule.
std::vector<StageLayers> stages_of_rank(const std::vector<StageLayers>& all,
                                        const std::vector<int>& rank_of_stage, int rank);

// Name of the unit of a tied table that two ranks have a copy of.
inline constexpr std::string_view kTiedTable = "table";

// The schedulable piece of ZeRO: parameters that are gathered, freed and reduced together.
struct UnitSpec {
  std::string name;  // "embedding", "layers.3", "layers.3.experts", "head", "table"
  std::vector<LocalParameter> parameters;
  bool trained = false;  // some of it, on some of the ranks that hold the layer's experts
};

// What a rank holds, in the order of its layers: the embedding, each block and the head are one
// unit, but for a block's routed experts, which other ranks share than its dense parameters: those
// that are here are a unit behind the block's. A tied table is the embedding's; where the head is
// on another rank, each of the two has a copy, a unit of its own on both ("table", ahead of the
// embedding's other parameters or behind the head's), so that they are cut alike and their
// gradients can be summed shard by shard. The head's copy counts in no norm. `trainable`: glob
// patterns; empty: all. Throws ConfigError for patterns that match nothing in the whole model, and
// as local_parameters() does.
std::vector<UnitSpec> unit_specs(const ModelSpec& model, const TensorSplit& split,
                                 const std::vector<std::string>& trainable,
                                 std::span<const StageLayers> stages);

// local_parameters() of these stages' blocks, and of both ends.
std::vector<LocalParameter> local_parameters(const ModelSpec& model, const TensorSplit& split,
                                             std::span<const StageLayers> stages);

// Whether these stages hold one of two copies of a tied table, and which end's.
enum class TiedCopy : std::uint8_t { kNone, kEmbedding, kHead };
TiedCopy tied_copy(const ModelSpec& model, std::span<const StageLayers> stages);

}  // namespace quatrain
