// SPDX-License-Identifier: Apache-2.0
// What a pipeline's ranks count is what cost/ says of their rows: messages and bytes, state,
// stashes, slots, gathered units.
#include <gtest/gtest.h>

#include <mutex>

#include "quatrain/cost/peaks.h"
#include "quatrain/schedule/clock.h"
#include "tests/pipeline/grid.h"
#include "tests/zero/counted_run.h"

namespace quatrain {
namespace {

std::vector<Case> cases() {
  std::vector<Case> all = sample(composition_grid(1), 24);
  for (const Case& c : sample(schedule_grid({2, 4}, 1), 20)) all.push_back(c);
  return all;
}

const std::vector<Action>& row_of(const GeometryJob& job) {
  return job.schedule.per_rank[static_cast<std::size_t>(job.pipeline.rank())];
}

ZeroShape shape_of(const Recipe& recipe, const GeometryJob& job) {
  return zero_shape(recipe.spec, job.plan, recipe.trainable, job.mesh.rank(),
                    job.schedule.rank_of_stage.front());
}

TEST(PipelineBooks, case_088_case_161_EveryRankIsTheCost) {
  std::mutex mutex;
  for (const Case& c : cases()) {
    on_every_rank(c.recipe, c.geometry,
                  [&](GeometryJob& job, CommCounts& counts, MemoryOwner& memory) {
                    const ZeroShape shape = shape_of(c.recipe, job);
                    const WorkShape work = work_of(c.recipe, job);
                    const StateBytes state = state_bytes(shape, c.recipe.optimizer.name, 0.0);
                    const RowPeaks peaks = row_peaks(row_of(job), shape, c.recipe.spec, work);
                    const WireCosts wire = step_wire(row_of(job), c.recipe.spec, work, shape);
                    const MemoryUse before = memory.live();
                    memory.reset_peak();
                    const CommCounts sent = counts;
                    (void)job.step(1);
                    const MemoryUse highest = memory.highest();
                    const std::string counted = text_of(wire_of(counts.since(sent)));

                    const std::lock_guard lock(mutex);
                    SCOPED_TRACE(c.name() + ", rank " + std::to_string(job.mesh.rank()));
                    EXPECT_EQ(before[MemoryCategory::kParams], state.params.value);
                    EXPECT_EQ(before[MemoryCategory::kGrads], state.grads.value);
                    EXPECT_EQ(before[MemoryCategory::kOptimizer], state.optimizer.value);
                    EXPECT_EQ(counted, text_of(wire));
                    EXPECT_EQ(highest[MemoryCategory::kActivations], peaks.activations.value);
                    EXPECT_EQ(highest[MemoryCategory::kBuffers], peaks.buffers.value);
                    EXPECT_EQ(highest[MemoryCategory::kGrads] - before[MemoryCategory::kGrads],
                              peaks.whole_grads.value);
                  });
  }
}

// Of stages that are alike, the stash is the schedule's own count of activations.
TEST(PipelineBooks, case_088_StashIsTheSchedulesClosedForm) {
  std::mutex mutex;
  for (const RunSchedule& schedule : run_schedules()) {
    const int ranks = 4;
    const int m = 8;
    const Recipe recipe{.spec = with_layers(tiny_llama(), ranks * schedule.chunks + 2),
                        .recompute = Recompute::kFull,
                        .global_batch = m,
                        .steps = 1};
    std::vector<std::int64_t> layers(static_cast<std::size_t>(ranks * schedule.chunks), 1);
    layers.front() = layers.back() = 2;
    const Geometry geometry{.accumulation = m,
                            .schedule = schedule.name,
                            .pipeline = ranks,
                            .chunks = schedule.chunks,
                            .layers = layers};
    on_every_rank(recipe, geometry, [&](GeometryJob& job, CommCounts&, MemoryOwner& memory) {
      const RowPeaks peaks =
          row_peaks(row_of(job), shape_of(recipe, job), recipe.spec, work_of(recipe, job));
      memory.reset_peak();
      (void)job.step(1);
      const std::lock_guard lock(mutex);
      EXPECT_EQ(memory.highest()[MemoryCategory::kActivations], peaks.activations.value)
          << schedule.name << " rank " << job.mesh.rank();
    });
  }
}

}  // namespace
}  // namespace quatrain
