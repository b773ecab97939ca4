// SPDX-License-Identifier: Apache-2.0
// See timeline.h. Ranks of a stage do the same: the first of each speaks for them.
#include "quatrain/report/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "quatrain/mesh/mesh.h"
#include "quatrain/schedule/clock.h"

namespace quatrain {
namespace {

enum Colour : int { kForward, kWaiting, kWeight, kBoth, kOptimizer, kOther, kInput };
const std::vector<std::string> kColourNames = {"forward",   "waits", "weight half", "backward",
                                               "optimizer", "other", "input half"};

Colour colour_of(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return kForward;
    case ActionKind::kBackwardInput:
      return kInput;
    case ActionKind::kBackwardWeight:
      return kWeight;
    case ActionKind::kBackward:
      return kBoth;
    case ActionKind::kOptimizerStep:
      return kOptimizer;
    case ActionKind::kSendForward:
    case ActionKind::kRecvForward:
    case ActionKind::kSendBackward:
    case ActionKind::kRecvBackward:
    case ActionKind::kUnshard:
    case ActionKind::kReshard:
    case ActionKind::kReduceGrad:
    case ActionKind::kReduceTied:
    case ActionKind::kNormPart:
      return kOther;
  }
  return kOther;
}

LaneSpan to_span(const Action& action, double begin, double end, bool waits) {
  LaneSpan span{begin, end, waits ? kWaiting : colour_of(action.kind), to_string(action)};
  if (action.microbatch && !action.unit && !waits)
    span.text = fmt::format("{}", *action.microbatch);
  return span;
}

// The first rank of those that have the same stages, by their least stage.
std::map<int, int> speakers(const RunRecord& run) {
  std::map<int, int> least_stage, speaker;
  for (const TraceSpan& span : run.trace) {
    const auto [at, added] = least_stage.try_emplace(span.rank, span.action.stage);
    if (!added) at->second = std::min(at->second, span.action.stage);
  }
  for (const auto& [rank, stage] : least_stage) speaker.try_emplace(stage, rank);
  return speaker;
}

// Spans of a rank between its last two optimizer steps' ends; all, where it has one.
std::vector<TraceSpan> last_step(const RunRecord& run, int rank) {
  std::set<double> ends;
  std::vector<TraceSpan> spans;
  for (const TraceSpan& span : run.trace) {
    if (span.rank != rank || (span.lane != "compute" && span.lane != "wait")) continue;
    spans.push_back(span);
    if (span.action.kind == ActionKind::kOptimizerStep && span.lane == "compute") {
      ends.insert(span.end_ms);
    }
  }
  std::vector<double> at(ends.begin(), ends.end());
  const auto count = static_cast<std::size_t>(run.plan.chunks);  // each stage has its own
  const double begin = at.size() > count ? at[at.size() - count - 1] : 0.0;
  const double end = at.empty() ? 0.0 : at.back();
  std::erase_if(spans, [&](const TraceSpan& span) {
    return span.begin_ms < begin - 1e-6 || span.end_ms > end + 1e-6;
  });
  return spans;
}

// Mean over micro-batches of each stage's actions, layers summed.
std::vector<StageDurations> durations_of(const std::map<int, std::vector<TraceSpan>>& of_rank,
                                         int stages) {
  struct Sum {
    double ms = 0;
    std::set<int> microbatches;
  };
  std::map<std::pair<int, ActionKind>, Sum> sums;
  for (const auto& [rank, spans] : of_rank) {
    for (const TraceSpan& span : spans) {
      if (span.lane != "compute") continue;
      Sum& sum = sums[{span.action.stage, span.action.kind}];
      sum.ms += span.end_ms - span.begin_ms;
      sum.microbatches.insert(span.action.microbatch.value_or(0));
    }
  }
  std::vector<StageDurations> result;
  for (int stage = 0; stage < stages; ++stage) {
    const auto mean = [&](ActionKind kind) {
      const Sum& sum = sums[{stage, kind}];
      return sum.microbatches.empty() ? 0.0 : sum.ms / static_cast<double>(sum.microbatches.size());
    };
    StageDurations of{.forward = mean(ActionKind::kForward),
                      .input = mean(ActionKind::kBackwardInput),
                      .weight = mean(ActionKind::kBackwardWeight),
                      .fused = mean(ActionKind::kBackward),
                      .optimizer = mean(ActionKind::kOptimizerStep)};
    if (of.fused == 0) of.fused = of.input + of.weight;
    result.push_back(of);
  }
  return result;
}

std::optional<Timeline> predicted(const RunRecord& run,
                                  const std::map<int, std::vector<TraceSpan>>& of_rank) {
  if (run.plan.schedule.starts_with("file:")) return std::nullopt;
  const int ranks = run.plan.degrees[static_cast<std::size_t>(Axis::kPp)];
  try {
    const Schedule schedule = with_optimizer_step(make_schedule(
        run.plan.schedule, {.num_ranks = ranks,
                            .num_microbatches = static_cast<int>(run.plan.num_microbatches),
                            .chunks = run.plan.chunks}));
    return simulate(schedule, {.of_stage = durations_of(of_rank, schedule.num_stages)});
  } catch (const ConfigError&) {
    return std::nullopt;  // made for costs that the folder does not hold
  }
}

}  // namespace

std::optional<StepTimeline> step_timeline(const RunRecord& run) {
  std::map<int, std::vector<TraceSpan>> of_rank;  // in the order of the pipeline
  double begin = 1e300, end = 0;
  for (const auto& [stage, rank] : speakers(run)) {
    std::vector<TraceSpan> spans = last_step(run, rank);
    if (spans.empty()) continue;
    for (const TraceSpan& span : spans) {
      begin = std::min(begin, span.begin_ms);
      end = std::max(end, span.end_ms);
    }
    of_rank.emplace(stage, std::move(spans));
  }
  if (of_rank.empty()) return std::nullopt;
  const std::optional<Timeline> clock = predicted(run, of_rank);
  StepTimeline result{.chart = {.title = "One step of " + run.name, .colours = kColourNames},
                      .measured_ms = end - begin};
  if (clock) result.predicted_ms = clock->makespan;
  std::size_t place = 0;
  for (const auto& [stage, spans] : of_rank) {
    if (clock && place < clock->per_rank.size()) {
      Lane lane{fmt::format("stage {} predicted", stage), {}, place > 0};
      for (const ClockEvent& event : clock->per_rank[place]) {
        lane.spans.push_back(to_span(event.action, event.begin, event.end, false));
      }
      result.chart.lanes.push_back(std::move(lane));
    }
    Lane lane{fmt::format("stage {} measured", stage), {}, place > 0 && !clock};
    for (const TraceSpan& span : spans) {
      lane.spans.push_back(
          to_span(span.action, span.begin_ms - begin, span.end_ms - begin, span.lane == "wait"));
    }
    result.chart.lanes.push_back(std::move(lane));
    ++place;
  }
  return result;
}

}  // namespace quatrain
