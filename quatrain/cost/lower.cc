// SPDX-License-Identifier: Apache-2.0
// REDUCE_TIED is placed ahead of ZeRO's actions: it stands behind all computation, and a
// REDUCE_GRAD directly behind the last gradient that it sums, so that copies of a table are summed
// when each is whole.
#include "quatrain/cost/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/file.h"
#include "quatrain/cost/local.h"
#include "quatrain/cost/zero.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/schedule/action_index.h"
#include "quatrain/schedule/messages.h"

namespace quatrain {
namespace {

constexpr std::string_view kFile = "file:";
constexpr const char* kKey = "parallel.schedule";

struct Wanted {
  int ranks, stages, microbatches;
};

Wanted wanted(const Plan& plan) {
  const int ranks = plan.degrees[static_cast<std::size_t>(Axis::kPp)];
  return {ranks, ranks * plan.chunks, static_cast<int>(plan.num_microbatches)};
}

// Where a file's rows are not those of the plan.
Problems misfits(const Schedule& schedule, const std::string& path, const Plan& plan) {
  const auto [ranks, stages, microbatches] = wanted(plan);
  Problems problems;
  const auto expect = [&](std::size_t is, int should, const char* what, std::string hint) {
    if (is == static_cast<std::size_t>(should)) return;
    problems.push_back(
        {kKey, fmt::format("{} has {} {}, not {}", path, is, what, should), std::move(hint)});
  };
  expect(schedule.per_rank.size(), ranks, "rows", fmt::format("pp = {}: a row a rank", ranks));
  expect(static_cast<std::size_t>(schedule.num_stages), stages, "stages",
         fmt::format("pp {} x chunks {}", ranks, plan.chunks));
  expect(static_cast<std::size_t>(schedule.num_microbatches), microbatches, "micro-batches",
         "a step has as many as training.accumulation");
  for_each_action(schedule, [&](const Action& action, Place place) {
    if (is_computation(action.kind) || is_message(action.kind)) return;
    problems.push_back({kKey,
                        fmt::format("{}: {} at rank {}, action {}", path, to_string(action),
                                    place.rank, place.slot),
                        "a run adds these itself: leave all but computation and messages out"});
  });
  return problems;
}

Schedule read_schedule(const std::string& path, const Plan& plan) {
  const std::string text = read_file(path);
  Schedule schedule;
  try {
    schedule = schedule_from_csv(text);
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("{}: {}: {}", kKey, path, error.what()));
  }
  throw_if_any(misfits(schedule, path, plan));
  Problems problems = check(schedule);
  for (Problem& problem : problems) problem.where = fmt::format("{}: {}", path, problem.where);
  throw_if_any(problems);
  return schedule;
}

Schedule named_schedule(const Plan& plan) {
  const Wanted sizes = wanted(plan);
  return make_schedule(
      plan.schedule,
      {.num_ranks = sizes.ranks, .num_microbatches = sizes.microbatches, .chunks = plan.chunks});
}

bool has_messages(const Schedule& schedule) {
  bool found = false;
  for_each_action(schedule, [&](const Action& a, Place) { found = found || is_message(a.kind); });
  return found;
}

// Whether two ranks train a copy of the tied table each.
bool trains_two_tables(const ModelSpec& model, const Schedule& schedule,
                       const std::vector<std::string>& trainable) {
  const std::vector<int>& rank_of = schedule.rank_of_stage.front();
  if (!model.tied || rank_of.front() == rank_of.back()) return false;
  return trained_parameters(model, {}, trainable).front().info.trainable;
}

ZeroPass zero_pass(const ModelSpec& model, const Plan& plan, const Schedule& schedule,
                   const std::vector<std::string>& trainable) {
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  ZeroPass pass;
  pass.prefetch = plan.prefetch;
  pass.reduce_once = plan.reduce_once;
  pass.gather_once = plan.gather_once;
  if (mesh.degree(Axis::kTp) > 1) pass.backward = LayerBackward::kFused;
  pass.stages.resize(static_cast<std::size_t>(schedule.num_stages));
  for (const int rank : mesh.group(Axis::kPp)) {
    const ZeroShape shape =
        zero_shape(model, plan, trainable, rank, schedule.rank_of_stage.front());
    // Replicas alone have no shards: gradients stay whole, whatever the stage.
    pass.zero_stage = shape.sharded ? plan.zero_stage : 0;
    std::vector<StageUnits> own = stage_units(model, shape);
    for (std::size_t i = 0; i < own.size(); ++i) {
      pass.stages[static_cast<std::size_t>(shape.stages[i].stage)] = std::move(own[i]);
    }
  }
  return pass;
}

}  // namespace

Schedule plan_schedule(const Plan& plan) {
  Schedule schedule = plan.schedule.starts_with(kFile)
                          ? read_schedule(plan.schedule.substr(kFile.size()), plan)
                          : named_schedule(plan);
  if (schedule.rank_of_stage.size() == 1) return schedule;
  throw ConfigError(
      fmt::format("{} = \"{}\" runs micro-batches from both ends of the pipeline, through two "
                  "replicas of the model: every rank would hold two copies of its parameters; use "
                  "dualpipe-v, which has one",
                  kKey, plan.schedule));
}

Schedule lowered_schedule(const ModelSpec& model, const Plan& plan,
                          const std::vector<std::string>& trainable) {
  const Mesh mesh(plan.degrees, plan.axis_order, 0);
  Schedule schedule = without_pairs(plan_schedule(plan));
  CHECK(static_cast<std::size_t>(schedule.num_stages) == plan.stage_begin.size(),
        "{} stages, the plan cuts {}", schedule.num_stages, plan.stage_begin.size());
  if (mesh.degree(Axis::kPp) > 1 && !has_messages(schedule)) schedule = with_messages(schedule);
  schedule = with_optimizer_step(schedule);
  if (trains_two_tables(model, schedule, trainable)) schedule = with_tied_reduce(schedule);
  throw_if_any(check(schedule));
  const AxisSet reducing{Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp};
  if (mesh.degree(reducing) == 1) return schedule;
  return with_zero(schedule, zero_pass(model, plan, schedule, trainable));
}

}  // namespace quatrain
