// SPDX-License-Identifier: Apache-2.0
#include "tests/zero/counted_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

#include "quatrain/comm/thread/thread.h"
#include "quatrain/cost/peaks.h"
#include "quatrain/engine/rank_thread.h"

namespace quatrain {

void on_every_rank(const Recipe& recipe, const Geometry& geometry, const Check& check) {
  install_counting_allocator();
  run_thread_ranks(geometry.ranks(), {}, [&](std::unique_ptr<Communicator> world) {
    MemoryOwner memory;
    const RankThread prologue({.threads = 1, .memory = &memory});
    CommCounts counts;
    const auto counted = make_counting(std::move(world), counts);
    GeometryJob job(recipe, geometry, *counted);
    check(job, counts, memory);
  });
}

WireCosts wire_of(const CommCounts& counts) {
  WireCosts costs;
  for (const auto& [group, operations] : counts.groups()) {
    if (group == "control" || group == "world") continue;
    for (int o = 0; o < kNumOperations; ++o) {
      const CommCount count = operations[static_cast<std::size_t>(o)];
      if (count.calls == 0 || static_cast<Operation>(o) == Operation::kRecv) continue;
      costs[group][std::string(name(static_cast<Operation>(o)))] = {count.calls, count.bytes};
    }
  }
  return costs;
}

std::string text_of(const WireCosts& costs) {
  std::string text;
  for (const auto& [group, operations] : costs) {
    for (const auto& [operation, cost] : operations) {
      text +=
          fmt::format("{} {}: {} calls, {} B\n", group, operation, cost.calls, cost.bytes.value);
    }
  }
  return text;
}

WorkShape work_of(const Recipe& recipe, const RankJob& job) {
  WorkShape work = work_shape(job.plan, job.mesh.rank());
  work.seq = work.context.tokens(recipe.seq);
  work.whole_seq = recipe.seq;
  work.head_chunk_tokens = kHeadChunk;
  work.trainable = recipe.trainable;
  work.global_balance = recipe.router.balance == kernels::BalanceOver::kGlobalBatch;
  return work;
}

void expect_flops(const StepReport& report, const WorkShape& work, const RankJob& job) {
  Flops forward{}, input{}, weight{};
  for (const UnitCost& unit : walk(job.model.spec(), work)) {
    forward += unit.forward();
    input += unit.backward_input();
    weight += unit.backward_weight();
  }
  const auto times = static_cast<double>(job.plan.num_microbatches);
  const auto counted = [&](PassKind pass) { return static_cast<double>(report.flops[pass]); };
  EXPECT_EQ(counted(PassKind::kForward), times * forward.value);
  EXPECT_EQ(counted(PassKind::kBackwardInput), times * input.value);
  EXPECT_EQ(counted(PassKind::kBackwardWeight), times * weight.value);
}

void expect_memory(const MemoryOwner& memory, const Recipe& recipe, const WorkShape& work,
                   const RankJob& job) {
  const MemoryUse live = memory.live(), highest = memory.highest();
  const ZeroShape shape = zero_shape(recipe.spec, job.plan, recipe.trainable, job.mesh.rank());
  const StateBytes state = state_bytes(shape, recipe.optimizer.name, 0.0);
  EXPECT_EQ(live[MemoryCategory::kParams], state.params.value);
  EXPECT_EQ(live[MemoryCategory::kGrads], state.grads.value);
  EXPECT_EQ(live[MemoryCategory::kOptimizer], state.optimizer.value);
  EXPECT_EQ(live[MemoryCategory::kActivations], 0);
  EXPECT_EQ(live[MemoryCategory::kBuffers], 0);
  const RowPeaks peaks = row_peaks(job.schedule.per_rank[0], shape, recipe.spec, work);
  EXPECT_EQ(highest[MemoryCategory::kGrads] - live[MemoryCategory::kGrads],
            peaks.whole_grads.value);
  EXPECT_EQ(highest[MemoryCategory::kBuffers], peaks.buffers.value);
}

}  // namespace quatrain
