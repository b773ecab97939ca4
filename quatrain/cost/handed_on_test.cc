// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/handed_on.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/cost/pipeline_test_support.h"
#include "quatrain/schedule/messages.h"

namespace quatrain {
namespace {

using ::testing::ElementsAre;

// Rank 0 sends outputs until the first gradient shows that one has arrived; the last rank's
// gradient has arrived when the output that its receiver made behind it is used.
TEST(HandedOn, AMessageIsGoneWhenItsReceiverAnswers) {
  EXPECT_THAT(handed_on_bound(with_messages(gpipe(2, 4))), ElementsAre(4, 4));
  EXPECT_THAT(handed_on_bound(with_messages(one_f_one_b(2, 1))), ElementsAre(1, 1));
  // 0F0 0F1 0B0 0F2 0B1 ... | 1F0 1B0 1F1 1B1 ...
  EXPECT_THAT(handed_on_bound(with_messages(one_f_one_b(2, 16))), ElementsAre(2, 2));
}

TEST(HandedOn, OneRankHandsOnWithinItself) {
  EXPECT_THAT(handed_on_bound(looped_bfs(1, 2, 4)), ElementsAre(4));
}

TEST(HandedOn, LayersAreTheirStages) {
  const ModelSpec model = with_layers(llama_like(), 12);
  for (const PipelineLayout& layout : kLayouts) {
    Plan plan = pipeline_plan(model, 4, layout);
    const std::vector<int> whole = handed_on_bound(lowered_schedule(model, plan, {}));
    degree(plan, Axis::kDpShard) = 2;
    EXPECT_EQ(handed_on_bound(lowered_schedule(model, plan, {})), whole) << layout.schedule;
  }
}

// Steady schedules do not hold more for more micro-batches.
TEST(HandedOn, DoesNotGrowWithMicrobatches) {
  for (const char* name : {"1f1b", "eager-1f1b", "zb-h1", "zb-h2"}) {
    const auto bound = [&](int m) {
      const ModelSpec model = with_layers(llama_like(), 8);
      return handed_on_bound(lowered_schedule(model, pipeline_plan(model, 4, {name, 1}, m), {}));
    };
    EXPECT_EQ(bound(16), bound(40)) << name;
  }
}

}  // namespace
}  // namespace quatrain
