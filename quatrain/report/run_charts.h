// SPDX-License-Identifier: Apache-2.0
// The charts of runs: loss, throughput, where time, memory and bytes went.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "quatrain/report/run.h"

namespace quatrain {

// Medians over the steps behind the first, which warms up; of the first where it is alone.
struct TypicalStep {
  double step_ms = 0, exposed_comm_ms = 0, bubble_ms = 0, tokens_per_s = 0;
  double mfu = kAbsent;
};
TypicalStep typical_step(const RunRecord& run);
double last_validation(const RunRecord& run);  // kAbsent: none
double peak_bytes(const RunRecord& run);       // of the fullest step, all categories

struct Section {
  std::string title;
  std::vector<std::string> charts;  // SVG
};
std::vector<Section> run_sections(std::span<const RunRecord> runs);

}  // namespace quatrain
