// SPDX-License-Identifier: Apache-2.0
// The books of expert parallelism: bytes and calls between ranks, FLOPs, stashes and memory,
// counted while steps run, equal cost/ for the load that the routers make. Routers of zeros choose
// the first experts for every row: a load that is known, and one-sided.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>

#include "quatrain/engine/microbatch.h"
#include "quatrain/engine/pass_builder.h"
#include "tests/books/stash_rows.h"
#include "tests/experts/parallel_grid.h"
#include "tests/zero/counted_run.h"

namespace quatrain {
namespace {

std::mutex g_mutex;  // of expectations

void zero_routers(GeometryJob& job) {
  for (const UnitShard& shard : job.units.shards()) {
    for (const ShardPart& part : parts(shard)) {
      if (!part.param->info.name.ends_with("gate.weight")) continue;
      shard.value.narrow(0, part.value_begin, part.numel).zero_();
      for (const auto& [kind, state] : job.optimizer->state(*part.param)) state.zero_();
    }
  }
  job.units.gather_kept_values();
}

// One micro-batch, with the load of routers of zeros.
WorkShape one_sided_work(const Recipe& recipe, const RankJob& job) {
  WorkShape work = work_of(recipe, job);
  const Experts& experts = *recipe.spec.experts;
  work.experts = load_of(experts.num_experts, work.split, work.batch * work.seq,
                         [&](Range held, std::int64_t rows) {
                           const std::int64_t end = std::min(held.end, experts.top_k);
                           return rows * std::max<std::int64_t>(end - held.begin, 0);
                         });
  return work;
}

std::string where_is(const Recipe& recipe, const Geometry& geometry, int rank) {
  return fmt::format("{} {}, rank {}", quatrain::name(recipe.dtype), Case{recipe, geometry}.name(),
                     rank);
}

void expect_the_cost(Recipe recipe, const Geometry& geometry, bool deferred) {
  recipe.optimizer.lr = 0.0;  // routers stay
  recipe.steps = 2;
  on_every_rank(recipe, geometry, [&](GeometryJob& job, CommCounts& counts, MemoryOwner& memory) {
    if (deferred) job.schedule = split_backward(job.schedule);
    zero_routers(job);
    (void)job.step(1, 0.0);
    const CommCounts before = counts;
    memory.reset_peak();
    const StepReport report = job.step(2, 0.0);
    const WorkShape work = one_sided_work(recipe, job);
    const WireCosts sent = wire_of(counts.since(before));
    const WireCosts want =
        step_wire(job.schedule.per_rank[0], recipe.spec, work,
                  zero_shape(recipe.spec, job.plan, recipe.trainable, job.mesh.rank()));
    const std::lock_guard lock(g_mutex);
    SCOPED_TRACE(where_is(recipe, geometry, job.mesh.rank()));
    EXPECT_EQ(text_of(sent), text_of(want));
    // Which rows of frozen experts train nothing is not said.
    if (recipe.trainable.empty()) expect_flops(report, work, job);
    expect_memory(memory, recipe, work, job);
  });
}

// On up to eight ranks without a pipeline.
std::vector<Geometry> flat_geometries() {
  std::vector<Geometry> all;
  for (const Geometry& geometry : expert_geometries()) {
    if (geometry.pipeline == 1 && geometry.ranks() <= 8) all.push_back(geometry);
  }
  return all;
}

TEST(ExpertBooks, case_010_case_160_AStepIsTheCost) {
  std::size_t turn = 0;
  for (const ModelSpec& spec : many_experts()) {
    for (const Geometry& geometry : flat_geometries()) {
      Recipe recipe = expert_recipe(spec, 2);
      recipe.router_bias_rate = 0.0;
      recipe.recompute = static_cast<Recompute>(turn % 3);
      if (turn % 4 == 3) recipe.dtype = Dtype::kBFloat16;
      if (turn % 5 == 4) recipe.trainable = {"*experts.1.*", "*norm*", "*gate.weight"};
      expect_the_cost(recipe, geometry, turn % 2 == 1);
      ++turn;
      if (HasFailure()) return;
    }
  }
}

void expect_stashes(const Recipe& recipe, const Geometry& geometry) {
  on_every_rank(recipe, geometry, [&](GeometryJob& job, CommCounts&, MemoryOwner& memory) {
    zero_routers(job);
    WorkShape work = one_sided_work(recipe, job);
    work.fused_backward = false;
    const std::vector<UnitCost> units = walk(recipe.spec, work);
    AccumulatingSink sink;
    const Pass pass = training_pass(job.data.microbatch(1, 0), {1, 0.1, 0.0, 3, &sink}, 0,
                                    job.model.context_parallel());
    Microbatch microbatch(job.model.layers(), pass);
    const std::int64_t transient = memory.live()[MemoryCategory::kTransient];
    const auto expect_rows = [&](auto rows_then, auto bytes_then) {
      const std::lock_guard lock(g_mutex);
      for (std::size_t u = 0; u < units.size(); ++u) {
        const Stash& stash = microbatch.stashes()[u];
        const std::string where = where_is(recipe, geometry, job.mesh.rank());
        EXPECT_EQ(rows_of(stash), rows_then(units[u])) << units[u].name << " " << where;
        EXPECT_EQ(stash.bytes(), (units[u].*bytes_then)().value) << units[u].name << where;
      }
    };
    memory.reset_peak();
    microbatch.forward();
    expect_rows(rows_after_forward, &UnitCost::stash);
    microbatch.backward_input();
    expect_rows(rows_after_input_half, &UnitCost::weight_stash);
    microbatch.backward_weight();
    const std::lock_guard lock(g_mutex);
    EXPECT_LE(memory.highest()[MemoryCategory::kTransient] - transient,
              transient_bound(recipe.spec, work).value)
        << where_is(recipe, geometry, job.mesh.rank());
  });
}

TEST(ExpertBooks, StashesHoldWhatTheWalkSays) {
  const std::vector<std::vector<std::string>> patterns = {
      {},
      {"*experts.1.*"},
      {"*experts.*.down_proj.weight", "*experts.*.w2.weight", "*gate.weight"},
      {"*norm*"}};
  std::size_t turn = 0;
  for (const ModelSpec& spec : many_experts()) {
    for (const Geometry& geometry : flat_geometries()) {
      if (geometry.zero_stage != 0) continue;
      for (const auto& trainable : patterns) {
        Recipe recipe = expert_recipe(spec, 1);
        for (const std::string& pattern : trainable) {
          std::vector<ParameterInfo> list = parameters(spec);
          if (set_trainable(list, {pattern}).empty()) recipe.trainable.push_back(pattern);
        }
        recipe.recompute = static_cast<Recompute>(turn++ % 3);
        expect_stashes(recipe, geometry);
        if (HasFailure()) return;
      }
    }
  }
}

// What the estimators of other systems get wrong: experts divide by ep x etp, not by tp.
TEST(ExpertBooks, case_160_ExpertsAreCountedWhereTheyAre) {
  Recipe recipe = expert_recipe(many_experts().front(), 1);
  const Geometry geometry{.shards = 2, .tensor = 2, .ep = 4, .etp = 1};
  std::int64_t experts = 0, norms = 0;
  for (const ParameterInfo& info : parameters(recipe.spec)) {
    if (info.expert >= 0) experts += info.numel();
    if (info.name.find("norm") != std::string::npos) norms += info.numel();
  }
  on_every_rank(recipe, geometry, [&](GeometryJob& job, CommCounts&, MemoryOwner&) {
    std::int64_t here = 0, norms_here = 0;
    for (const auto& unit : job.model.units()) {
      if (unit->of_experts()) here += unit->numel();
      for (const Param& param : unit->params()) {
        if (param.info.name.find("norm") == std::string::npos) continue;
        norms_here += param.info.numel();
        EXPECT_EQ(param.local_shape, param.info.shape);
      }
    }
    const std::lock_guard lock(g_mutex);
    EXPECT_EQ(here, experts / 4);
    EXPECT_EQ(norms_here, norms);
  });
}

}  // namespace
}  // namespace quatrain
