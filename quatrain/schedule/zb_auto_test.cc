// SPDX-License-Identifier: Apache-2.0
#include "quatrain/schedule/zb_auto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/schedule/clock.h"

namespace quatrain {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::ThrowsMessage;

// One activation is 34h + 5as bytes a token and layer, of which the weight half needs 32h (Zero
// Bubble, arXiv:2401.10241, table 1; s 1024).
struct Model {
  double heads, hidden;
  StashDeltas stash() const {
    const double all = 34 * hidden + 5 * heads * 1024, weight = 32 * hidden;
    return {all, weight - all, -weight};
  }
};
constexpr Model k1_5B{24, 2304}, k6_2B{32, 4096}, k14_6B{40, 5120}, k28_3B{48, 6144};

struct Row {
  Model model;
  int p, m;
  RankTimes times;                          // table 6 (profiled, ms)
  double f1b1, zb_h1, zb_h2, zb_1p, zb_2p;  // table 5 (bubble rates)
};
constexpr std::array kTable5 = {
    Row{k1_5B, 8, 24, {18.522, 18.086, 9.337, 0.601}, 0.2431, 0.1585, 0.1083, 0.1585, 0.0433},
    Row{k1_5B, 8, 32, {18.513, 18.086, 9.331, 0.626}, 0.1985, 0.1242, 0.0837, 0.1242, 0.0039},
    Row{k1_5B, 8, 64, {18.546, 18.097, 9.321, 0.762}, 0.1240, 0.0674, 0.0444, 0.0674, 0.0026},
    Row{k6_2B, 8, 24, {29.718, 29.444, 19.927, 0.527}, 0.2347, 0.1323, 0.0698, 0.1323, 0.0029},
    Row{k6_2B, 8, 32, {29.802, 29.428, 19.530, 0.577}, 0.1898, 0.1045, 0.0559, 0.1045, 0.0022},
    Row{k6_2B, 8, 64, {29.935, 29.621, 19.388, 0.535}, 0.1091, 0.0554, 0.0294, 0.0554, 0.0010},
    Row{k14_6B, 16, 48, {11.347, 11.248, 8.132, 0.377}, 0.2552, 0.1397, 0.0672, 0.1397, 0.0066},
    Row{k14_6B, 16, 64, {11.307, 11.254, 8.101, 0.379}, 0.2082, 0.1088, 0.0516, 0.1088, 0.0054},
    Row{k14_6B, 16, 128, {11.325, 11.308, 8.109, 0.378}, 0.1251, 0.0576, 0.0266, 0.0576, 0.0028},
    Row{k28_3B, 32, 96, {10.419, 10.207, 7.715, 0.408}, 0.2646, 0.1421, 0.0641, 0.1421, 0.0038},
    Row{k28_3B, 32, 128, {10.408, 10.204, 7.703, 0.408}, 0.2168, 0.1106, 0.0490, 0.1106, 0.0029},
    Row{k28_3B, 32, 256, {10.402, 10.248, 7.698, 0.460}, 0.1352, 0.0594, 0.0257, 0.0594, 0.0018},
};

double bubble_rate(const Schedule& schedule, const RankTimes& times) {
  return simulate(schedule, even_durations(schedule, times)).bubble_rate;
}
double rounded(double rate) { return std::round(rate * 1e4) / 1e4; }

Schedule of_row(const Row& row, double limit) {
  ScheduleCosts costs;
  costs.times = row.times;
  costs.stash = row.model.stash();
  costs.memory_limit = limit;
  const Schedule schedule = zb_auto(row.p, row.m, costs);
  const std::vector<StashDeltas> stash(static_cast<std::size_t>(row.p), costs.stash);
  EXPECT_THAT(peak_stash(schedule, stash), Each(Le(limit * row.p * costs.stash.forward)));
  return schedule;
}

TEST(ZeroBubblePaper, Table5) {
  for (const Row& row : kTable5) {
    SCOPED_TRACE(::testing::Message() << "p " << row.p << " m " << row.m);
    EXPECT_EQ(rounded(bubble_rate(one_f_one_b(row.p, row.m), row.times)), row.f1b1);
    EXPECT_EQ(rounded(bubble_rate(zero_bubble_h1(row.p, row.m), row.times)), row.zb_h1);
    EXPECT_EQ(rounded(bubble_rate(zero_bubble_h2(row.p, row.m), row.times)), row.zb_h2);
    EXPECT_EQ(rounded(bubble_rate(of_row(row, 1), row.times)), row.zb_1p);
    EXPECT_EQ(rounded(bubble_rate(of_row(row, 2), row.times)), row.zb_2p);
  }
}

ScheduleCosts unit_costs(double limit) {
  ScheduleCosts costs;
  costs.memory_limit = limit;
  return costs;
}

// Orders of the paper's authors' planner at unit costs.
TEST(ZbAuto, FourRanksEightMicrobatches) {
  EXPECT_EQ(
      to_csv(zb_auto(4, 8, unit_costs(1))),
      "0F0,0F1,0F2,0F3,0I0,0W0,0F4,0I1,0W1,0F5,0I2,0W2,0F6,0I3,0W3,0F7,0I4,0W4,0I5,0W5,0I6,0W6,"
      "0I7,0W7\n"
      "1F0,1F1,1F2,1I0,1F3,1I1,1W0,1F4,1I2,1W1,1F5,1I3,1W2,1F6,1I4,1W3,1F7,1I5,1W4,1I6,1W5,1I7,"
      "1W6,1W7\n"
      "2F0,2F1,2I0,2F2,2I1,2F3,2I2,2W0,2F4,2I3,2W1,2F5,2I4,2W2,2F6,2I5,2W3,2F7,2I6,2W4,2I7,2W5,"
      "2W6,2W7\n"
      "3F0,3I0,3F1,3I1,3F2,3I2,3F3,3I3,3W0,3F4,3I4,3W1,3F5,3I5,3W2,3F6,3I6,3W3,3F7,3I7,3W4,3W5,"
      "3W6,3W7\n");
  EXPECT_EQ(
      to_csv(zb_auto(4, 8, unit_costs(2))),
      "0F0,0F1,0F2,0F3,0F4,0F5,0F6,0I0,0F7,0W0,0I1,0W1,0I2,0W2,0I3,0W3,0I4,0W4,0I5,0W5,0I6,0W6,"
      "0I7,0W7\n"
      "1F0,1F1,1F2,1F3,1F4,1I0,1F5,1I1,1F6,1I2,1F7,1I3,1W0,1I4,1W1,1I5,1W2,1I6,1W3,1I7,1W4,1W5,"
      "1W6,1W7\n"
      "2F0,2F1,2F2,2I0,2F3,2I1,2F4,2I2,2F5,2I3,2F6,2I4,2F7,2I5,2W0,2I6,2W1,2I7,2W2,2W3,2W4,2W5,"
      "2W6,2W7\n"
      "3F0,3I0,3F1,3I1,3F2,3I2,3F3,3I3,3F4,3I4,3F5,3I5,3F6,3I6,3F7,3I7,3W0,3W1,3W2,3W3,3W4,3W5,"
      "3W6,3W7\n");
}

TEST(ZbVAuto, FourRanksEightMicrobatches) {
  EXPECT_EQ(to_csv(zb_v_auto(4, 8, {})),
            read_file(QUATRAIN_SOURCE_DIR "/quatrain/schedule/testdata/zbv_auto_p4_m8.csv"));
}

TEST(ZbVAuto, NoBubbleAtHandmadeMemory) {
  for (int p : {2, 4, 8}) {
    const Schedule schedule = zb_v_auto(p, 4 * p, {});
    EXPECT_EQ(to_string(check(schedule)), "");
    EXPECT_NEAR(bubble_rate(schedule, {}), 0.0, 1e-12) << p;
    EXPECT_THAT(peak_stash(schedule), Each(Le(2 * p)));
  }
}

TEST(ZbVAuto, FollowsTheTimes) {
  ScheduleCosts costs;
  costs.times = {18.5, 18.1, 9.3, 0.6};
  const Schedule made = zb_v_auto(8, 32, costs);
  EXPECT_EQ(to_string(check(made)), "");
  EXPECT_LT(bubble_rate(made, costs.times), bubble_rate(zero_bubble_v(8, 32), costs.times));
}

TEST(ZbVAuto, TooLittleMemoryIsRefused) {
  ScheduleCosts costs;
  costs.memory_limit = 0.1;
  EXPECT_THAT([&] { zb_v_auto(4, 8, costs); },
              ThrowsMessage<ConfigError>(HasSubstr("memory limit of 0.1")));
}

// Less than p activations serialise; up to 3p they buy less and less bubble.
TEST(ZbAuto, MemoryBuysBubble) {
  const Row row{k1_5B, 8, 32, {18.5, 18.1, 9.3, 0.6}, 0, 0, 0, 0, 0};
  const auto rate = [&](double activations) {
    return bubble_rate(of_row(row, activations / 8), row.times);
  };
  EXPECT_NEAR(rate(2), 0.827, 5e-4);
  EXPECT_NEAR(rate(7), 0.439, 5e-4);
  EXPECT_NEAR(rate(8), 0.124, 5e-4);
  EXPECT_LT(rate(12), 0.050);
  EXPECT_NEAR(rate(16), 0.0038, 5e-5);
  EXPECT_NEAR(rate(24), 0.0008, 5e-5);
}

TEST(ZbAuto, UsesTheTimesOfEachStage) {
  ScheduleCosts costs = unit_costs(2);
  costs.durations.assign(4, {});
  costs.durations[3] = {2, 2, 1, 3, 0, 0, 0};
  const Schedule uneven = zb_auto(4, 8, costs);
  EXPECT_EQ(to_string(check(uneven)), "");
  EXPECT_NE(uneven, zb_auto(4, 8, unit_costs(2)));
  Durations durations;
  durations.of_stage = costs.durations;
  EXPECT_LE(simulate(uneven, durations).span,
            simulate(zb_auto(4, 8, unit_costs(2)), durations).span);
}

TEST(ZbAuto, CheckAndLimitOverAGrid) {
  for (int p : {1, 2, 3, 4, 8, 16}) {
    for (int m : {1, 2, 3, 7, 8, 33}) {
      for (int limit : {1, 2, p, 2 * p}) {
        SCOPED_TRACE(::testing::Message() << "p " << p << " m " << m << " limit " << limit);
        const Schedule schedule = zb_auto(p, m, unit_costs(static_cast<double>(limit) / p));
        EXPECT_EQ(to_string(check(schedule)), "");
        EXPECT_THAT(peak_stash(schedule), Each(Le(limit)));
      }
    }
  }
}

TEST(ZbAuto, TooLittleMemoryIsRefused) {
  EXPECT_THAT([] { zb_auto(4, 8, unit_costs(0.2)); },
              ThrowsMessage<ConfigError>(HasSubstr("use 0.25 or more")));
}

}  // namespace
}  // namespace quatrain
