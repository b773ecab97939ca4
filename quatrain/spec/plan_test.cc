// SPDX-License-Identifier: Apache-2.0
// Plans as JSON: canonical text, a hash that never moves, strict reading.
#include "quatrain/spec/plan.h"

#include <gtest/gtest.h>

namespace quatrain {
namespace {

Plan sample() {
  Plan plan;
  plan.degrees = {2, 1, 4, 1, 2, 1, 1, 1, 1};
  plan.seq_len = 4096;
  plan.num_microbatches = 8;
  plan.stage_begin = {0, 17};
  plan.recompute = Recompute::kSelective;
  plan.dtype = Dtype::kBFloat16;
  return plan;
}

TEST(Plan, StagesByCountAndByHand) {
  using Layers = std::vector<std::int64_t>;
  using Begin = std::vector<int>;
  EXPECT_EQ(even_layers(8, 4), (Layers{2, 2, 2, 2}));
  EXPECT_EQ(even_layers(5, 4), (Layers{2, 1, 1, 1}));
  EXPECT_EQ(even_layers(2, 4), (Layers{1, 1, 0, 0}));
  EXPECT_EQ(even_layers(0, 2), (Layers{0, 0}));
  EXPECT_EQ(first_layers({1, 2, 2, 3}), (Begin{0, 1, 3, 5}));
  EXPECT_EQ(first_layers({0, 3, 0, 2}), (Begin{0, 0, 3, 3}));
  EXPECT_EQ(first_layers({0}), Begin{0});
}

TEST(Plan, RoundTripAndHash) {
  const Plan plan = sample();
  const std::string text = to_json(plan);
  EXPECT_EQ(plan_from_json(text), plan);
  EXPECT_EQ(to_json(plan_from_json(text)), text);
  EXPECT_EQ(hash(plan).size(), 16u);
  Plan other = plan;
  other.num_microbatches = 9;
  EXPECT_NE(hash(other), hash(plan));
}

// Checkpoints and logs carry these: a change of text or hash breaks them.
TEST(Plan, CanonicalTextIsFixed) {
  EXPECT_EQ(to_json(sample()),
            R"({"axis_order":["pp","dp_replicate","dp_shard","cp","tp"],"chunks":1,)"
            R"("cp_style":"ring","degrees":{"cp":1,"dp_replicate":1,"dp_shard":4,)"
            R"("edp_replicate":1,"edp_shard":1,"ep":1,"etp":1,"pp":2,"tp":2},)"
            R"("dtype":"bfloat16","gather_again":false,"gather_once":false,)"
            R"("microbatch_size":1,"num_microbatches":8,"overlap_chunks":1,"prefetch":1,)"
            R"("recompute":"selective","reduce_once":false,"schedule":"1f1b","seq_len":4096,)"
            R"("sequence_parallel":false,"stage_begin":[0,17],"zero_stage":0})");
}

TEST(Plan, RefusesWhatItDoesNotKnow) {
  const std::string text = to_json(sample());
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  for (const std::string& bad :
       {std::string("{"), std::string("[]"), with("\"chunks\":1,", ""),
        with("\"chunks\"", "\"chunk\""), with("\"chunks\":1", "\"chunks\":1.5"),
        with("\"chunks\":1", "\"chunks\":true"), with("\"chunks\":1", "\"chunks\":5000000000"),
        with("\"bfloat16\"", "\"bf16\""), with("\"selective\"", "\"some\""),
        with("[\"pp\"", "[\"qq\""), with("\"etp\":1", "\"xtp\":1")}) {
    EXPECT_THROW((void)plan_from_json(bad), ConfigError) << bad;
  }
}

}  // namespace
}  // namespace quatrain
