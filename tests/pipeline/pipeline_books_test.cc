// SPDX-License-Identifier: Apache-2.0
// What a pipeline's ranks count is what cost/ says of their rows: messages and bytes, state,
// stashes, slots, gathered units.
#include <gtest/gtest.h>

#include <mutex>
#include <tuple>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/cost/peaks.h"
#include "quatrain/engine/rank_thread.h"
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

// What one rank kept, held and sent in a step, and what cost/ says of it.
struct Books {
  Books(const Recipe& recipe, const RankJob& job)
      : shape(zero_shape(recipe.spec, job.plan, recipe.trainable, job.mesh.rank(),
                         job.schedule.rank_of_stage.front())),
        work(work_of(recipe, job)),
        peaks(row_peaks(row_of(job), shape, recipe.spec, work)),
        state(state_bytes(shape, recipe.optimizer.name, 0.0)),
        wire(step_wire(row_of(job), recipe.spec, work, shape)) {}
  static const std::vector<Action>& row_of(const RankJob& job) {
    return job.schedule.per_rank[static_cast<std::size_t>(job.pipeline.rank())];
  }
  ZeroShape shape;
  WorkShape work;
  RowPeaks peaks;
  StateBytes state;
  WireCosts wire;
};
struct Seen {
  MemoryUse before, highest;
  std::int64_t stash = 0;  // the most, between actions
  WireCosts wire;
};

// check(job, what cost/ says, what was seen), one rank at a time.
template <class Check>
void on_every_rank_of(const Case& c, const Check& check) {
  install_counting_allocator();
  std::mutex mutex;
  const Side side = side_of(c.recipe, c.geometry);
  run_thread_ranks(c.geometry.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
    MemoryOwner memory;
    const RankThread prologue({.threads = 1, .memory = &memory});
    CommCounts counts;
    const auto counted = make_counting(std::move(world), counts);
    Seen seen;
    RankJobOptions options = side.job;
    options.executor.after_action = [&](const Action&) {
      seen.stash = std::max(seen.stash, memory.live()[MemoryCategory::kActivations]);
    };
    const auto data = side.data(side.mesh(counted->rank()));
    RankJob job(options, *data, *counted);
    seen.before = memory.live();
    memory.reset_peak();
    const CommCounts sent = counts;
    (void)job.step(1);
    seen.highest = memory.highest();
    seen.wire = wire_of(counts.since(sent));
    const std::lock_guard lock(mutex);
    SCOPED_TRACE(c.name() + ", rank " + std::to_string(counted->rank()));
    check(job, Books(c.recipe, job), seen);
  });
}

TEST(PipelineBooks, case_088_case_161_EveryRankIsTheCost) {
  for (const Case& c : cases()) {
    on_every_rank_of(c, [&](const RankJob&, const Books& books, const Seen& seen) {
      EXPECT_EQ(seen.before[MemoryCategory::kParams], books.state.params.value);
      EXPECT_EQ(seen.before[MemoryCategory::kGrads], books.state.grads.value);
      EXPECT_EQ(seen.before[MemoryCategory::kOptimizer], books.state.optimizer.value);
      EXPECT_EQ(text_of(seen.wire), text_of(books.wire));
      EXPECT_EQ(seen.highest[MemoryCategory::kBuffers], books.peaks.buffers.value);
      EXPECT_EQ(seen.highest[MemoryCategory::kGrads] - seen.before[MemoryCategory::kGrads],
                books.peaks.whole_grads.value);
      EXPECT_EQ(seen.stash, books.peaks.activations.value);
      // Within a layer's backward what it makes and what it frees are there together.
      EXPECT_LE(seen.highest[MemoryCategory::kActivations] - seen.stash,
                transient_bound(c.recipe.spec, books.work).value);
    });
  }
}

// Messages are the formula's: one of b s h each way a boundary and micro-batch, / tp where rows are
// cut; twice as many boundaries cross ranks with two chunks, but none at the turn of a V.
TEST(PipelineBooks, MessagesAreTheFormula) {
  for (const auto& [schedule, chunks, boundaries] :
       {std::tuple{"1f1b", 1, 3}, {"zb-h2", 1, 3}, {"interleaved-1f1b", 2, 7}, {"zb-v", 2, 6}}) {
    for (const int tensor : {1, 2}) {
      const Case c{{.spec = with_layers(tensor_llama(), 8), .global_batch = 8, .steps = 1},
                   {.accumulation = 8,
                    .schedule = schedule,
                    .tensor = tensor,
                    .sequence_parallel = tensor > 1,
                    .pipeline = 4,
                    .chunks = chunks}};
      WireCost all;
      on_every_rank_of(c, [&](const RankJob&, const Books&, const Seen& seen) {
        all += seen.wire.at("pp").at("send");
      });
      const std::int64_t m = 8, row = c.recipe.spec.hidden * 8, rows = c.recipe.seq;
      EXPECT_EQ(all.calls, 2 * m * boundaries * tensor) << schedule;
      EXPECT_EQ(all.bytes.value, 2 * m * boundaries * rows * row * (tensor > 1 ? 1 : tensor))
          << schedule;
    }
  }
}

// Where stages are alike a rank's stash is the schedule's own count of activations, in units of a
// stage's: blocks that keep their input alone, freed by the weight half, or both halves at once.
TEST(PipelineBooks, case_088_StashIsTheSchedulesClosedForm) {
  for (const RunSchedule& schedule : run_schedules()) {
    const int ranks = 4, m = 8;
    std::vector<std::int64_t> layers(static_cast<std::size_t>(ranks * schedule.chunks), 2);
    const Case c{{.spec = with_layers(tiny_llama(), 2 * ranks * schedule.chunks),
                  .recompute = Recompute::kNone,
                  .global_batch = m,
                  .steps = 1},
                 {.accumulation = m,
                  .schedule = schedule.name,
                  .pipeline = ranks,
                  .chunks = schedule.chunks,
                  .layers = layers}};
    WorkShape work;
    work.seq = c.recipe.seq;
    work.dtype = Dtype::kFloat64;
    const UnitCost block = walk(c.recipe.spec, work)[1];
    const StashDeltas deltas{
        2.0 * static_cast<double>(block.stash().value),
        2.0 * static_cast<double>((block.weight_stash() - block.stash()).value),
        -2.0 * static_cast<double>(block.weight_stash().value)};
    on_every_rank_of(c, [&](const RankJob& job, const Books&, const Seen& seen) {
      const auto stages =
          std::vector<StashDeltas>(static_cast<std::size_t>(job.schedule.num_stages), deltas);
      const auto rank = static_cast<std::size_t>(job.pipeline.rank());
      const double closed = peak_stash(job.schedule, stages)[rank];
      // The embedding and the head keep something of their own for a while.
      const bool inner = job.pipeline.rank() > 0 && job.pipeline.rank() < ranks - 1;
      if (!inner) return;
      EXPECT_EQ(static_cast<double>(seen.stash), closed) << schedule.name;
    });
  }
}

}  // namespace
}  // namespace quatrain
