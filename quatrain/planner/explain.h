// SPDX-License-Identifier: Apache-2.0
// Why a plan: in words and numbers.
#pragma once
#include <string>
#include <vector>

#include "quatrain/planner/search.h"

namespace quatrain {

// "tp8+sp pp16 dp128 zero1 1f1b, micro-batch 1 x 16".
std::string to_string(const Geometry& geometry);
// "ring", "hybrid/2", "ulysses+contiguous".
std::string to_string(const ContextStyle& style);

// One line: where the step's time goes and what fills the memory.
std::string why(const Job& job, const RankedPlan& plan);

// The best plan in the order of the golden rule: cut the model until it fits, on the fastest links
// first; then data parallelism; then what the batch leaves. What did not fit with less, which link
// each axis rides, and what each costs of the step. `critical_batch`: in tokens; 0: not known.
std::vector<std::string> explain(const Job& job, const SearchResult& result,
                                 double critical_batch = 0.0);

// Why `other` loses to `best`: the parts of time and memory that differ most.
std::string why_not(const Job& job, const RankedPlan& best, const RankedPlan& other);

// Where nothing fits: the smallest plan and what it lacks.
std::string why_nothing(const Job& job, const SearchResult& result);

}  // namespace quatrain
