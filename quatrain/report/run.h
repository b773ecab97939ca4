// SPDX-License-Identifier: Apache-2.0
// What a run left behind, read from the texts of its folder's files: metrics.jsonl, plan.json and,
// where the run wrote one, trace.json.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/schedule/action.h"
#include "quatrain/spec/plan.h"

namespace quatrain {

inline constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

// A line of metrics.jsonl; kAbsent where it has no such key.
struct StepRecord {
  std::int64_t step = 0;
  double loss = 0, validation_loss = kAbsent;
  double tokens = 0, tokens_per_s = 0;
  double step_ms = 0, exposed_comm_ms = 0, bubble_ms = 0;
  double mfu = kAbsent;
  std::map<std::string, double> peak_bytes;                   // by category, without the total
  std::map<std::string, std::map<std::string, double>> sent;  // bytes by axis, operation
};

struct TraceSpan {
  int rank = 0;
  std::string lane;  // "compute", "wait", ...
  Action action;
  double begin_ms = 0, end_ms = 0;
};

struct RunRecord {
  std::string name;
  std::vector<StepRecord> steps;  // never empty
  Plan plan;
  std::vector<TraceSpan> trace;      // empty: not traced
  std::vector<std::string> reasons;  // why this plan, a line each; empty: nobody asked
};

struct RunTexts {
  std::string folder;  // what messages call it
  std::string metrics, plan;
  std::optional<std::string> trace = {};
};
// Adds what is wrong, each with its file and line, and returns what could be read. A last line that
// a crash has cut is left out.
RunRecord read_run(const RunTexts& texts, Problems& problems);

// "tp2+sp pp4 dp_shard8 zero3 zb-h1": the degrees above 1, or "one rank".
std::string short_text(const Plan& plan);

}  // namespace quatrain
