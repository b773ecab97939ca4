// SPDX-License-Identifier: Apache-2.0
// ZeRO as actions of a schedule (Rajbhandari et al., arXiv:1910.02054; Zhao et al., PyTorch FSDP,
// arXiv:2304.11277): a pass writes out when a unit is gathered, freed and reduced, so that the
// clock sees the prefetch and the executor only walks.
//
// In a lowered row a computation's unit is a layer of its stage ("0F1.2": layer 2), the unit of
// UNSHARD, RESHARD and REDUCE_GRAD a ZeRO unit ("0UNSHARD.2"). ZeRO units are numbered through all
// that a rank holds: stages of one rank may share one.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "quatrain/schedule/schedule.h"

namespace quatrain {

// What one layer asks of its rank's units, by their numbers.
struct LayerUnits {
  std::vector<int> values;        // weights that its forward reads
  std::vector<int> grads;         // trainable ones among them: gradients that it adds to
  bool input_half_reads = true;   // false for an embedding, and for a head, whose forward did it
  bool grads_in_forward = false;  // of a head
};
using StageUnits = std::vector<LayerUnits>;  // the stage's layers, in order

// What becomes of a fused backward. Halves: a unit is freed before the weight half, which reads no
// weights. Fused: the layer may run its weight half under the collectives of its input half.
enum class LayerBackward : std::uint8_t { kHalves, kFused };

struct ZeroPass {
  int zero_stage = 0;        // 0: all_reduce; 1: scattered; 2: gradients; 3: parameters as well
  int prefetch = 1;          // units gathered ahead of the layer that computes; stage 3
  bool reduce_once = false;  // stages 2, 3: gradients stay whole until the last micro-batch
  bool gather_once = false;  // stage 3: a unit stays gathered while the row stays in one stage
  LayerBackward backward = LayerBackward::kHalves;
  std::vector<StageUnits> stages = {};  // [stage]
};

// Every computation becomes one action a layer, none in a stage without layers; a fused backward
// one or two.
Schedule by_layer(const Schedule& schedule, std::span<const int> layers_of_stage,
                  LayerBackward backward = LayerBackward::kHalves);

// by_layer(), and the actions of ZeRO between, each named after the stage of the computation that
// asks for it. Stage 3 gathers each unit before each use and frees it after, unless the next
// computation uses it too, or with gather_once any that follows before the row leaves the stage; at
// most `prefetch` gathers are ahead. Gradients are reduced directly behind the last action that
// adds to them: once a step in stages 0 and 1 (and with reduce_once), else once a micro-batch.
// Stages 1 and 2 gather each updated unit behind the row's last optimizer step. Throws BugError for
// a stage without its units.
Schedule with_zero(const Schedule& schedule, const ZeroPass& zero);

}  // namespace quatrain
