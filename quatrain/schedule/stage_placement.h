// SPDX-License-Identifier: Apache-2.0
// Which rank holds which stage.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace quatrain {

enum class StagePlacement : std::uint8_t {
  kLinear,  // one stage a rank, in order
  kLoop,    // stage s on rank s mod p
  kV,       // down the ranks and up again: the first and the last stage share rank 0
  kDual,    // two replicas of one stage a rank, the second from the last rank to the first
};

std::string_view to_string(StagePlacement placement);

// [replica][stage] -> rank, of `num_ranks * chunks` stages. More than two chunks in a V turn again
// at rank 0. Linear and dual have one chunk a rank and replica. Throws BugError for counts below 1.
std::vector<std::vector<int>> place_stages(StagePlacement placement, int num_ranks, int chunks);

}  // namespace quatrain
