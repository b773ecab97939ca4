// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "quatrain/base/error.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

TEST(SplitBackward, EveryBBecomesIThenW) {
  EXPECT_EQ(to_csv(split_backward(one_f_one_b(2, 2))),
            "0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1W0,1F1,1I1,1W1\n");
  const Schedule split = split_backward(gpipe(2, 2));
  EXPECT_EQ(split_backward(split), split);
}

TEST(SplitBackward, PairsKeepTheInputHalf) {
  EXPECT_EQ(to_csv(split_backward(schedule_from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"))),
            "0F0,(0F1;0I0)OVERLAP_F_B,0W0,0I1,0W1\n");
}

TEST(MergeBackward, NeighboursOfOneMicrobatch) {
  EXPECT_EQ(to_csv(merge_backward(schedule_from_csv("0F0,0F1,0I0,0W0,0I1,0F2,0W1,0I2,0W2\n"))),
            "0F0,0F1,0B0,0I1,0F2,0W1,0B2\n");
  EXPECT_EQ(merge_backward(split_backward(one_f_one_b(3, 5))), one_f_one_b(3, 5));
}

TEST(WithoutPairs, ForwardFirst) {
  EXPECT_EQ(to_csv(without_pairs(schedule_from_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n"))),
            "0F0,0F1,0B0,0B1\n");
  const Schedule single = without_pairs(dualpipe_v(3, 7));
  EXPECT_EQ(to_csv(single).find("OVERLAP"), std::string::npos);
  EXPECT_EQ(to_string(check(single)), "");
}

TEST(WithOptimizerStep, OneAStageAtTheEnd) {
  EXPECT_EQ(to_csv(with_optimizer_step(gpipe(2, 1))),
            "0F0,0B0,0OPTIMIZER_STEP\n1F0,1B0,1OPTIMIZER_STEP\n");
  const Schedule v = schedule_from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n");
  EXPECT_EQ(to_csv(with_optimizer_step(v)),
            "0F0,3F0,3B0,0B0,0OPTIMIZER_STEP,3OPTIMIZER_STEP\n"
            "1F0,2F0,2B0,1B0,1OPTIMIZER_STEP,2OPTIMIZER_STEP\n");
}

}  // namespace
}  // namespace quatrain
