// SPDX-License-Identifier: Apache-2.0
// What the user has decided about a geometry.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/planner/geometry.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

// Absent: searched.
struct Fixed {
  std::optional<int> dp, dp_replicate, zero, tp, cp, cp_heads, pp, chunks, ep, etp;
  std::optional<bool> sequence_parallel, gather_again, cp_zigzag;
  std::optional<std::int64_t> micro_batch;
  std::optional<Recompute> recompute;
  std::optional<std::string> schedule;
  std::optional<std::string_view> cp_style;  // of kCpStyles
};
// "tp=8,pp=1". Throws ConfigError with the keys that exist, or with what a value should be.
Fixed parse_fixed(std::string_view text);
// Ways to share sequences that these decide or leave open, and that the model's heads allow: none
// where what is fixed does not fit. Of hybrids one, with the most ranks of a domain that can
// exchange heads, unless they are fixed.
std::vector<ContextStyle> context_styles(const Job& job, const Fixed& fixed, int tp, int cp);
// Both; `more` wins.
Fixed merged(Fixed base, const Fixed& more);

}  // namespace quatrain
