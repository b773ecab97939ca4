// SPDX-License-Identifier: Apache-2.0
// Weak scaling by the planner: more accelerators at a fixed batch of each, and which part of the
// step grows.
#pragma once
#include <string>
#include <vector>

#include "quatrain/planner/estimate.h"

namespace quatrain::bench {

struct ScalingRow {
  int gpus = 0;
  Geometry geometry = {};
  StepParts parts = {};  // seconds
  double step = 0;       // their sum
  bool fits = false;
};
struct Scaling {
  std::string name;  // model, cluster and what is held
  std::vector<ScalingRow> rows;
};

// Llama 3.1 8B on H100, 32,768 tokens of an accelerator a step, 16 to 16,384 of them: ZeRO-3 over
// all, ZeRO-3 within groups of 64 and copies of those, four tensor ranks with ZeRO-1. Llama 3.1
// 405B in the degrees it was trained with (tp 8, pp 16, 16 sequences a data rank and step),
// interleaved, from 1,024 accelerators on: with fewer it does not fit.
std::vector<Scaling> weak_scaling();

}  // namespace quatrain::bench
