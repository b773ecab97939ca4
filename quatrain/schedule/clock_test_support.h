// SPDX-License-Identifier: Apache-2.0
// The handmade zero-bubble orders (Qi et al., arXiv:2401.10241, figures 2 and 3), for tests of the
// clock that are older than their generators.
#pragma once
#include <algorithm>

#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

inline Schedule zb_h1(int p, int m) {
  Schedule schedule = one_stage_a_rank(p, m);
  for (int r = 0; r < p; ++r) {
    auto& row = schedule.per_rank[static_cast<std::size_t>(r)];
    const int warm_up = std::min(m, p - 1 - r);
    for (int i = 0; i < warm_up; ++i) row.push_back(compute(r, ActionKind::kForward, i));
    int w = 0;
    for (int i = 0; i < m; ++i) {
      if (i + warm_up < m) row.push_back(compute(r, ActionKind::kForward, i + warm_up));
      row.push_back(compute(r, ActionKind::kBackwardInput, i));
      if (i >= r) row.push_back(compute(r, ActionKind::kBackwardWeight, w++));
    }
    while (w < m) row.push_back(compute(r, ActionKind::kBackwardWeight, w++));
  }
  return schedule;
}

inline Schedule zb_h2(int p, int m) {
  Schedule schedule = one_stage_a_rank(p, m);
  for (int r = 0; r < p; ++r) {
    auto& row = schedule.per_rank[static_cast<std::size_t>(r)];
    const int warm_up = std::min(m, 2 * (p - r) - 1);
    int f = 0, w = 0;
    while (f < warm_up) row.push_back(compute(r, ActionKind::kForward, f++));
    for (int i = 0; i < m; ++i) {
      row.push_back(compute(r, ActionKind::kBackwardInput, i));
      if (i >= 2 * r) row.push_back(compute(r, ActionKind::kBackwardWeight, w++));
      if (f < m) row.push_back(compute(r, ActionKind::kForward, f++));
    }
    while (w < m) row.push_back(compute(r, ActionKind::kBackwardWeight, w++));
  }
  return schedule;
}

}  // namespace quatrain
