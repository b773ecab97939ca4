// SPDX-License-Identifier: Apache-2.0
#include "quatrain/schedule/stage_placement.h"

#include "quatrain/base/check.h"

namespace quatrain {
namespace {

int rank_of(StagePlacement placement, int stage, int num_ranks) {
  const int pass = stage / num_ranks, at = stage % num_ranks;
  return placement == StagePlacement::kV && pass % 2 == 1 ? num_ranks - 1 - at : at;
}

}  // namespace

std::string_view to_string(StagePlacement placement) {
  switch (placement) {
    case StagePlacement::kLinear:
      return "linear";
    case StagePlacement::kLoop:
      return "loop";
    case StagePlacement::kV:
      return "V";
    case StagePlacement::kDual:
      return "dual";
  }
  return "?";
}

std::vector<std::vector<int>> place_stages(StagePlacement placement, int num_ranks, int chunks) {
  CHECK(num_ranks >= 1 && chunks >= 1, "{} ranks of {} chunks", num_ranks, chunks);
  const bool one_chunk = placement == StagePlacement::kLinear || placement == StagePlacement::kDual;
  CHECK(chunks == 1 || !one_chunk, "{} chunks in a {} placement", chunks, to_string(placement));
  std::vector<int> forward;
  for (int stage = 0; stage < num_ranks * chunks; ++stage) {
    forward.push_back(rank_of(placement, stage, num_ranks));
  }
  if (placement != StagePlacement::kDual) return {forward};
  return {forward, {forward.rbegin(), forward.rend()}};
}

}  // namespace quatrain
