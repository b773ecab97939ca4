// SPDX-License-Identifier: Apache-2.0
// Rows at 4 ranks and 8 micro-batches against those that other implementations print (testdata),
// closed forms of the peak, and check() over a grid.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "quatrain/base/error.h"
#include "quatrain/schedule/grid_test_support.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

std::string printed(const std::string& name) {
  std::ifstream file(QUATRAIN_SOURCE_DIR "/quatrain/schedule/testdata/" + name + "_p4_m8.csv");
  EXPECT_TRUE(file) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Golden {
  std::string file;
  std::string name;
  int chunks;
};

// DualPipe-V's rows are also PyTorch's, ZB-V's also sail-sg's hand form. Two things on which
// implementations differ: looped BFS runs its backwards in reverse, as PyTorch does; gpipe runs
// them in the order of the forwards, as PyTorch does and the paper does not.
class Orders : public ::testing::TestWithParam<Golden> {};

TEST_P(Orders, AreThoseOfOtherImplementations) {
  const auto& [file, name, chunks] = GetParam();
  const Schedule made =
      make_schedule(name, {.num_ranks = 4, .num_microbatches = 8, .chunks = chunks});
  EXPECT_EQ(to_csv(made), printed(file));
  EXPECT_EQ(schedule_from_csv(printed(file)), made);
}

INSTANTIATE_TEST_SUITE_P(, Orders,
                         ::testing::Values(Golden{"gpipe", "gpipe", 1}, Golden{"1f1b", "1f1b", 1},
                                           Golden{"eager1f1b", "eager-1f1b", 1},
                                           Golden{"interleaved1f1b_v2", "interleaved-1f1b", 2},
                                           Golden{"loopedbfs_v2", "looped-bfs", 2},
                                           Golden{"zbh1", "zb-h1", 1}, Golden{"zbh2", "zb-h2", 1},
                                           Golden{"interleaved_zb1p_v2", "interleaved-zb1p", 2},
                                           Golden{"zbv", "zb-v", 2}, Golden{"vhalf", "v-half", 2},
                                           Golden{"vmin", "v-min", 2}, Golden{"1f1bv", "1f1b-v", 2},
                                           Golden{"dualpipev", "dualpipe-v", 2}),
                         [](const auto& param) {
                           std::string text = param.param.name;
                           std::erase(text, '-');
                           return text;
                         });

// The printed rows number the second direction's stages 4 to 7 and its micro-batches from 0 again.
Action in_replica(Action action) {
  if (action.stage >= 4) {
    action.stage -= 4;
    action.replica = 1;
    *action.microbatch += 4;
  }
  if (action.overlap) action.overlap = std::make_shared<const Action>(in_replica(*action.overlap));
  return action;
}

TEST(DualPipe, RowsAreThoseOfOtherImplementations) {
  Schedule other = schedule_from_csv(printed("dualpipe"));
  for (auto& row : other.per_rank) std::transform(row.begin(), row.end(), row.begin(), in_replica);
  EXPECT_EQ(to_csv(dualpipe(4, 8)), to_csv(other));
  EXPECT_EQ(schedule_from_csv(to_csv(other)), dualpipe(4, 8));
}

TEST(OneFOneB, FewerMicrobatchesThanRanks) {
  EXPECT_EQ(to_csv(one_f_one_b(3, 1)), "0F0,0B0\n1F0,1B0\n2F0,2B0\n");
  EXPECT_EQ(to_csv(one_f_one_b(3, 2)), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n");
}

TEST(OneFOneB, OneRankAlternates) {
  EXPECT_EQ(to_csv(one_f_one_b(1, 3)), "0F0,0B0,0F1,0B1,0F2,0B2\n");
}

TEST(Interleaved, OneChunkIsEager1F1B) {
  for (int m : {1, 4, 9}) {
    EXPECT_EQ(to_csv(interleaved_1f1b(4, 1, m)), to_csv(eager_1f1b(4, m)));
  }
}

TEST(Interleaved, GroupsOfAnySize) {
  EXPECT_EQ(to_csv(interleaved_1f1b(1, 2, 3, 2)),
            "0F0,0F1,1F0,1B0,1F1,1B1,0F2,0B0,1F2,0B1,1B2,0B2\n");
  for (const auto& [p, m, group] : {std::tuple{2, 5, 3}, {2, 6, 4}, {4, 9, 5}, {4, 12, 6}}) {
    const ScheduleRequest request{
        .num_ranks = p, .num_microbatches = m, .chunks = 3, .group = group};
    for (const char* name : {"interleaved-1f1b", "interleaved-zb1p"}) {
      EXPECT_EQ(to_string(check(make_schedule(name, request))), "")
          << p << " " << m << " " << group;
    }
  }
}

TEST(ZeroBubbleH1Fused, HalvesAtTheEnds) {
  EXPECT_EQ(to_csv(zero_bubble_h1_fused(3, 5)),
            "0F0,0F1,0F2,0B0,0F3,0B1,0F4,0B2,0B3,0B4\n"
            "1F0,1F1,1I0,1F2,1B1,1F3,1B2,1F4,1B3,1I4,1W0,1W4\n"
            "2F0,2I0,2F1,2I1,2F2,2B2,2F3,2B3,2F4,2B4,2W0,2W1\n");
}

// A rule is not stricter than the truth: what it refuses does not run.
TEST(Interleaved, RefusedGroupsDeadlock) {
  EXPECT_FALSE(check(interleaved_1f1b(8, 2, 16, 4)).empty());
  EXPECT_THROW(make_schedule("interleaved-1f1b",
                             {.num_ranks = 8, .num_microbatches = 16, .chunks = 2, .group = 4}),
               ConfigError);
}

std::vector<int> peaks(const Schedule& schedule) {
  std::vector<int> result;
  for (const auto& row : schedule.per_rank) {
    int now = 0, most = 0;
    for (const Action& slot : row) {
      for (const Action* action = &slot; action != nullptr; action = action->overlap.get()) {
        if (action->kind == ActionKind::kForward) most = std::max(most, ++now);
        if (action->kind == ActionKind::kBackward) --now;
        if (action->kind == ActionKind::kBackwardWeight) --now;
      }
    }
    result.push_back(most);
  }
  return result;
}

// Chunk activations at once on rank r.
TEST(Peaks, FollowTheClosedForms) {
  using Formula = int (*)(int p, int m, int v, int r);
  struct Case {
    std::string name;
    int chunks;
    Formula formula;
  };
  const std::vector<Case> cases = {
      {"gpipe", 1, [](int, int m, int, int) { return m; }},
      {"1f1b", 1, [](int p, int m, int, int r) { return std::min(m, p - r); }},
      {"eager-1f1b", 1, [](int p, int m, int, int r) { return std::min(m, 2 * (p - r) - 1); }},
      {"interleaved-1f1b", 3,
       [](int p, int m, int v, int r) {
         return std::min(m * v, 2 * (p - 1 - r) + (v - 1) * p + 1);
       }},
      {"looped-bfs", 2, [](int, int m, int v, int) { return m * v; }},
      {"zb-h1", 1, [](int p, int m, int, int) { return std::min(m, p); }},
      {"zb-h1-fused", 1, [](int p, int m, int, int) { return std::min(m, p); }},
      {"zb-h2", 1, [](int p, int m, int, int) { return std::min(m, 2 * p - 1); }},
      {"interleaved-zb1p", 2, [](int p, int m, int v, int) { return std::min(m * v, v * p); }},
      {"zb-v", 2, [](int p, int m, int, int) { return 2 * std::min(m, p); }},
      {"v-half", 2, [](int p, int, int, int) { return 2 * ((p + 2) / 2); }},
      {"v-min", 2, [](int p, int, int, int) { return 2 * ((p + 4) / 3); }},
      {"dualpipe-v", 2, [](int p, int, int, int) { return 2 * p + 1; }},
      {"dualpipe", 1, [](int p, int, int, int) { return p + 1; }},
  };
  for (const auto& [name, chunks, formula] : cases) {
    for (int p : {2, 4, 6, 8, 10}) {
      const int m = 4 * p;
      const Schedule schedule =
          make_schedule(name, {.num_ranks = p, .num_microbatches = m, .chunks = chunks});
      std::vector<int> expected;
      for (int r = 0; r < p; ++r) expected.push_back(formula(p, m, chunks, r));
      if (name.starts_with("v-") || name.starts_with("dual")) {
        EXPECT_EQ(std::ranges::max(peaks(schedule)), expected[0]) << name << " p " << p;
      } else {
        EXPECT_EQ(peaks(schedule), expected) << name << " p " << p;
      }
    }
  }
}

TEST(Peaks, OfOneFOneBV) {
  for (const auto& [p, most] : {std::pair{4, 6}, {6, 10}, {8, 12}, {12, 18}, {16, 22}}) {
    EXPECT_EQ(std::ranges::max(peaks(one_f_one_b_v(p, 4 * p))), most) << p;
  }
}

TEST(Generators, HoldOverAPartOfTheGrid) {
  for_part_of_grid(3, 60, [](const GridPoint& point) { expect_sound(point); });
}

TEST(Generators, NonsenseIsABug) {
  EXPECT_THROW(gpipe(0, 1), BugError);
  EXPECT_THROW(one_f_one_b(1, 0), BugError);
  EXPECT_THROW(dualpipe(3, 8), BugError);
  EXPECT_THROW(dualpipe_v(4, 7), BugError);
  EXPECT_THROW(looped_bfs(2, 0, 1), BugError);
}

}  // namespace
}  // namespace quatrain
