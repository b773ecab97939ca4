// SPDX-License-Identifier: Apache-2.0
// Lowered rows, action by action, and what must hold of all of them.
#include "quatrain/schedule/zero.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

namespace quatrain {
namespace {

// Embedding, `blocks` blocks and a head, a unit each; a tied head reads and trains unit 0 as well.
StageUnits decoder(int blocks, bool tied = false) {
  StageUnits stage;
  stage.push_back({.values = {0}, .grads = {0}, .input_half_reads = false});
  for (int b = 1; b <= blocks; ++b) stage.push_back({.values = {b}, .grads = {b}});
  LayerUnits head{.values = {blocks + 1},
                  .grads = {blocks + 1},
                  .input_half_reads = false,
                  .grads_in_forward = true};
  if (tied) {
    head.values.push_back(0);
    head.grads.push_back(0);
  }
  stage.push_back(head);
  return stage;
}

std::string row_text(const Schedule& schedule) {
  std::string text;
  for (const Action& action : schedule.per_rank[0]) {
    text += (text.empty() ? "" : " ") + to_string(action);
  }
  return text;
}

Schedule lowered(int zero_stage, int microbatches, const StageUnits& units, int prefetch = 1,
                 bool once = false) {
  ZeroPass pass{
      .zero_stage = zero_stage, .prefetch = prefetch, .reduce_once = once, .stages = {units}};
  return with_zero(with_optimizer_step(one_f_one_b(1, microbatches)), pass);
}

TEST(Zero, BackwardByLayerIsItsHalvesInTurn) {
  EXPECT_EQ(row_text(by_layer(one_f_one_b(1, 1), std::vector{2})),
            "0F0.0 0F0.1 0I0.1 0W0.1 0I0.0 0W0.0");
}

TEST(Zero, AFusedBackwardMayStayOneActionALayer) {
  EXPECT_EQ(row_text(by_layer(one_f_one_b(1, 1), std::vector{2}, LayerBackward::kFused)),
            "0F0.0 0F0.1 0B0.1 0B0.0");
  ZeroPass pass{
      .zero_stage = 3, .prefetch = 0, .backward = LayerBackward::kFused, .stages = {decoder(1)}};
  EXPECT_EQ(row_text(with_zero(with_optimizer_step(one_f_one_b(1, 1)), pass)),
            "0UNSHARD.0 0F0.0 0RESHARD.0 0UNSHARD.1 0F0.1 0RESHARD.1 0UNSHARD.2 0F0.2 0RESHARD.2 "
            "0REDUCE_GRAD0.2 0B0.2 0UNSHARD.1 0B0.1 0RESHARD.1 0REDUCE_GRAD0.1 0B0.0 "
            "0REDUCE_GRAD0.0 0OPTIMIZER_STEP");
}

TEST(Zero, StageZeroReducesOnceAStep) {
  EXPECT_EQ(row_text(lowered(0, 2, decoder(1))),
            "0F0.0 0F0.1 0F0.2 0I0.2 0W0.2 0I0.1 0W0.1 0I0.0 0W0.0 "
            "0F1.0 0F1.1 0F1.2 0REDUCE_GRAD.2 0I1.2 0W1.2 0I1.1 0W1.1 0REDUCE_GRAD.1 0I1.0 0W1.0 "
            "0REDUCE_GRAD.0 0OPTIMIZER_STEP");
}

TEST(Zero, StageOneGathersWhatTheStepUpdated) {
  const std::string text = row_text(lowered(1, 1, decoder(1)));
  EXPECT_THAT(text, ::testing::EndsWith("0REDUCE_GRAD.0 0OPTIMIZER_STEP 0UNSHARD.0 0UNSHARD.1 "
                                        "0UNSHARD.2"));
}

TEST(Zero, StageTwoReducesEveryMicrobatch) {
  EXPECT_EQ(row_text(lowered(2, 2, decoder(0))),
            "0F0.0 0F0.1 0REDUCE_GRAD0.1 0I0.1 0W0.1 0I0.0 0W0.0 0REDUCE_GRAD0.0 "
            "0F1.0 0F1.1 0REDUCE_GRAD1.1 0I1.1 0W1.1 0I1.0 0W1.0 0REDUCE_GRAD1.0 "
            "0OPTIMIZER_STEP 0UNSHARD.0 0UNSHARD.1");
  EXPECT_EQ(row_text(lowered(2, 2, decoder(0), 1, true)),
            "0F0.0 0F0.1 0I0.1 0W0.1 0I0.0 0W0.0 "
            "0F1.0 0F1.1 0REDUCE_GRAD.1 0I1.1 0W1.1 0I1.0 0W1.0 0REDUCE_GRAD.0 "
            "0OPTIMIZER_STEP 0UNSHARD.0 0UNSHARD.1");
}

TEST(Zero, StageThreeGathersOneUnitAhead) {
  EXPECT_EQ(row_text(lowered(3, 1, decoder(2))),
            "0UNSHARD.0 0UNSHARD.1 0F0.0 0RESHARD.0 0UNSHARD.2 0F0.1 0RESHARD.1 0UNSHARD.3 0F0.2 "
            "0RESHARD.2 0UNSHARD.2 0F0.3 0RESHARD.3 0REDUCE_GRAD0.3 0I0.3 0W0.3 "
            "0UNSHARD.1 0I0.2 0RESHARD.2 0W0.2 0REDUCE_GRAD0.2 0I0.1 0RESHARD.1 0W0.1 "
            "0REDUCE_GRAD0.1 0I0.0 0W0.0 0REDUCE_GRAD0.0 0OPTIMIZER_STEP");
}

TEST(Zero, WithoutPrefetchOneUnitLives) {
  EXPECT_EQ(row_text(lowered(3, 1, decoder(1), 0)),
            "0UNSHARD.0 0F0.0 0RESHARD.0 0UNSHARD.1 0F0.1 0RESHARD.1 0UNSHARD.2 0F0.2 0RESHARD.2 "
            "0REDUCE_GRAD0.2 0I0.2 0W0.2 0UNSHARD.1 0I0.1 0RESHARD.1 0W0.1 0REDUCE_GRAD0.1 0I0.0 "
            "0W0.0 0REDUCE_GRAD0.0 0OPTIMIZER_STEP");
}

// Walks a row and checks it as the executor would.
struct Walk {
  explicit Walk(const StageUnits& stage) : units(stage) {}
  void run(const std::vector<Action>& row) {
    for (const Action& action : row) step(action);
    EXPECT_TRUE(live.empty());
    EXPECT_TRUE(unreduced.empty());
  }
  void step(const Action& action) {
    const int unit = action.unit.value_or(-1);
    if (action.kind == ActionKind::kUnshard) {
      EXPECT_TRUE(live.insert(unit).second) << to_string(action);
      ++gathers[unit];
    } else if (action.kind == ActionKind::kReshard) {
      EXPECT_EQ(live.erase(unit), 1U) << to_string(action);
    } else if (action.kind == ActionKind::kReduceGrad) {
      EXPECT_EQ(unreduced.erase(unit), 1U) << to_string(action);
      ++reduces[unit];
    } else if (action.kind != ActionKind::kOptimizerStep) {
      compute(action, units[static_cast<std::size_t>(unit)]);
    } else {
      EXPECT_TRUE(live.empty());
    }
  }
  void compute(const Action& action, const LayerUnits& layer) {
    const bool forward = action.kind == ActionKind::kForward;
    if (forward || (action.kind == ActionKind::kBackwardInput && layer.input_half_reads)) {
      for (int unit : layer.values) EXPECT_TRUE(live.contains(unit)) << to_string(action);
      ahead = std::max(ahead, live.size() - layer.values.size());
    }
    const bool adds = layer.grads_in_forward ? forward : action.kind == ActionKind::kBackwardWeight;
    if (adds) unreduced.insert(layer.grads.begin(), layer.grads.end());
  }

  const StageUnits& units;
  std::set<int> live, unreduced;
  std::map<int, int> gathers, reduces;
  std::size_t ahead = 0;
};

TEST(Zero, StageThreeHoldsForEverySchedulePrefetchAndTie) {
  for (const bool tied : {false, true}) {
    for (const int blocks : {0, 1, 5}) {
      const StageUnits units = decoder(blocks, tied);
      for (const Schedule& schedule :
           {one_f_one_b(1, 3), gpipe(1, 3), split_backward(gpipe(1, 3))}) {
        for (const int prefetch : {0, 1, 2, 4}) {
          const ZeroPass pass{.zero_stage = 3, .prefetch = prefetch, .stages = {units}};
          Walk walk(units);
          walk.run(with_zero(with_optimizer_step(schedule), pass).per_rank[0]);
          EXPECT_LE(walk.ahead, static_cast<std::size_t>(prefetch));
          // A block is gathered for each half, an embedding and a head once, a tied table twice;
          // less where neighbours in the row share.
          const bool shares = blocks < 2 || schedule != one_f_one_b(1, 3);
          for (int b = 1; b <= blocks; ++b) EXPECT_LE(walk.gathers[b], 6);
          EXPECT_LE(walk.gathers[0], tied ? 6 : 3);
          if (!shares) {
            for (int b = 1; b <= blocks; ++b) EXPECT_EQ(walk.gathers[b], 6);
            EXPECT_EQ(walk.gathers[0], tied ? 6 : 3);
            EXPECT_EQ(walk.gathers[blocks + 1], 3);
          }
          for (int b = 1; b <= blocks; ++b) EXPECT_EQ(walk.reduces[b], 3);
        }
      }
    }
  }
}

// A stage that is neither first nor last: `blocks` units from `first` on.
StageUnits blocks_from(int first, int blocks) {
  StageUnits stage;
  for (int b = first; b < first + blocks; ++b) stage.push_back({.values = {b}, .grads = {b}});
  return stage;
}

int count(const Schedule& schedule, ActionKind kind) {
  const std::vector<Action>& row = schedule.per_rank[0];
  return static_cast<int>(
      std::count_if(row.begin(), row.end(), [kind](const Action& a) { return a.kind == kind; }));
}

// One rank's stages 0 and 2: an embedding and a head that read one table, unit 0.
ZeroPass two_ends(int zero_stage) {
  ZeroPass pass{.zero_stage = zero_stage, .prefetch = 0};
  pass.stages = {
      {{.values = {0}, .grads = {0}, .input_half_reads = false}},
      {},
      {{.values = {1, 0}, .grads = {1, 0}, .input_half_reads = false, .grads_in_forward = true}}};
  return pass;
}

Schedule one_rank(int stages, const std::string& row) {
  Schedule schedule;
  schedule.num_stages = stages;
  schedule.rank_of_stage.assign(1, std::vector<int>(static_cast<std::size_t>(stages), 0));
  schedule.per_rank.emplace_back();
  std::istringstream words(row);
  for (std::string word; words >> word;) schedule.per_rank[0].push_back(parse_action(word));
  return schedule;
}

// The embedding's weight half adds last; the stage without layers leaves its messages.
TEST(Zero, StagesOfARankShareAUnit) {
  const Schedule row =
      one_rank(3,
               "0F0 1RECV_F0 1F0 1SEND_F0 2F0 2B0 1RECV_B0 1B0 1SEND_B0 0B0 0OPTIMIZER_STEP "
               "1OPTIMIZER_STEP 2OPTIMIZER_STEP");
  EXPECT_EQ(row_text(with_zero(row, two_ends(1))),
            "0F0.0 1RECV_F0 1SEND_F0 2F0.0 2REDUCE_GRAD.1 2I0.0 2W0.0 1RECV_B0 1SEND_B0 0I0.0 "
            "0W0.0 0REDUCE_GRAD.0 0OPTIMIZER_STEP 1OPTIMIZER_STEP 2OPTIMIZER_STEP 0UNSHARD.0 "
            "2UNSHARD.1");
  EXPECT_EQ(row_text(with_zero(row, two_ends(3))),
            "0UNSHARD.0 0F0.0 1RECV_F0 1SEND_F0 2UNSHARD.1 2F0.0 0RESHARD.0 2RESHARD.1 "
            "2REDUCE_GRAD0.1 2I0.0 2W0.0 1RECV_B0 1SEND_B0 0I0.0 0W0.0 0REDUCE_GRAD0.0 "
            "0OPTIMIZER_STEP 1OPTIMIZER_STEP 2OPTIMIZER_STEP");
}

TEST(Zero, GatheredOnceWhileTheRowStaysInItsStage) {
  ZeroPass pass{.zero_stage = 3, .gather_once = true};
  pass.stages = {decoder(2)};
  const Schedule all = with_zero(with_optimizer_step(one_f_one_b(1, 3)), pass);
  EXPECT_EQ(count(all, ActionKind::kUnshard), 4);
  EXPECT_EQ(count(all, ActionKind::kReshard), 4);
  Walk walk(pass.stages[0]);
  walk.run(all.per_rank[0]);
  // Two chunks of one rank: a gather for each run of a chunk's passes.
  pass.stages = {blocks_from(0, 2), blocks_from(2, 2)};
  const Schedule chunks = one_rank(2, "0F0 0F1 0F2 1F0 1F1 1F2 1B0 1B1 1B2 0B0 0B1 0B2");
  EXPECT_EQ(count(with_zero(chunks, pass), ActionKind::kUnshard), 3 * 2);
  const Schedule turns = one_rank(2, "0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1");
  EXPECT_EQ(count(with_zero(turns, pass), ActionKind::kUnshard), 5 * 2);
  pass.gather_once = false;
  EXPECT_EQ(count(with_zero(chunks, pass), ActionKind::kUnshard),
            12 * 2 - 1);  // neighbours share one
}

// What one row asks of its stage does not count uses of another, and frees what it leaves.
TEST(Zero, GatheredOnceIsFreedBeforeTheNextStage) {
  ZeroPass pass{.zero_stage = 3, .prefetch = 0, .gather_once = true};
  pass.stages = {blocks_from(0, 1), blocks_from(1, 1)};
  EXPECT_EQ(row_text(with_zero(one_rank(2, "0F0 0F1 1F0 1W0 1F1 0F2"), pass)),
            "0UNSHARD.0 0F0.0 0F1.0 0RESHARD.0 1UNSHARD.1 1F0.0 1W0.0 1REDUCE_GRAD0.1 1F1.0 "
            "1RESHARD.1 0UNSHARD.0 0F2.0 0RESHARD.0");
}

TEST(Zero, TiedCopiesMeetBehindReductions) {
  const Schedule row = one_rank(1, "0F0 0B0 0F1 0B1 0REDUCE_TIED 0OPTIMIZER_STEP");
  for (int zero = 0; zero <= 3; ++zero) {
    const ZeroPass pass{.zero_stage = zero, .stages = {decoder(1)}};
    EXPECT_THAT(row_text(with_zero(row, pass)),
                ::testing::HasSubstr(zero < 2 ? "0REDUCE_GRAD.0 0REDUCE_TIED 0OPTIMIZER_STEP"
                                              : "0REDUCE_GRAD1.0 0REDUCE_TIED 0OPTIMIZER_STEP"));
  }
}

TEST(Zero, RowsOfManyActionsAreLoweredInTime) {
  const ZeroPass pass{.zero_stage = 3, .stages = {decoder(126)}};
  const Schedule rows = with_zero(with_optimizer_step(one_f_one_b(1, 256)), pass);
  EXPECT_GT(rows.per_rank[0].size(), 200000U);
}

}  // namespace
}  // namespace quatrain
