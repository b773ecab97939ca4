// SPDX-License-Identifier: Apache-2.0
// Every geometry of a job: those that fit, ranked, and those refused, counted by reason.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/planner/estimate.h"
#include "quatrain/planner/fixed.h"

namespace quatrain {

enum class Objective : std::uint8_t { kTime, kMemory };

struct RankedPlan {
  Geometry geometry;
  Estimate estimate;
};
struct Refusal {
  std::int64_t count = 0;  // a refused degree counts once, whatever it would have been tried with
  Geometry example;
};
struct SearchResult {
  std::vector<RankedPlan> plans;           // best first
  std::map<std::string, Refusal> refused;  // by reason
  std::int64_t evaluated = 0;         // plans whose memory, and time where they fit, was estimated
  std::int64_t dominated = 0;         // left out, since their computation alone takes longer
  std::optional<RankedPlan> nearest;  // smallest of those that do not fit, when none does
};

struct SearchRequest {
  Fixed fixed;
  Objective objective = Objective::kTime;
  int top = 5;
  bool must_fit = true;    // false: plans that exceed the memory are ranked too (published runs)
  bool first_fit = false;  // stops at the first plan that fits
};
// Ranks by closed forms of bubbles and memory; the plans that could be best are timed on the clock
// and keep what the books say, by which alone they fit or not. Ties fall
// to the smaller tp, pp and cp. Throws ConfigError when the job itself is impossible.
SearchResult search(const Job& job, const SearchRequest& request);

// Fewest accelerators, of 1, 2, 3, 4, 6, 8, 12, ..., on which a plan fits and, where
// `tokens_per_second` is not 0, trains as fast; nothing: none up to 65,536. The job's own number is
// not read.
std::optional<int> fewest_gpus(const Job& job, const SearchRequest& request,
                               double tokens_per_second = 0.0);

}  // namespace quatrain
