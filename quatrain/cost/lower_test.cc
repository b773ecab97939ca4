// SPDX-License-Identifier: Apache-2.0
// Plans become rows: by name or from a file, with all that ranks do in a step.
#include "quatrain/cost/lower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "quatrain/base/file.h"
#include "quatrain/cost/pipeline_test_support.h"
#include "quatrain/schedule/messages.h"
#include "quatrain/spec/run_config.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;

const ModelSpec kTied = with_layers(gpt2_like(), 8);

std::string refusal(const Plan& plan) {
  try {
    (void)plan_schedule(plan);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

int count(const std::vector<Action>& row, ActionKind kind) {
  return static_cast<int>(
      std::count_if(row.begin(), row.end(), [kind](const Action& a) { return a.kind == kind; }));
}

class ScheduleFile : public ::testing::Test {
 protected:
  ~ScheduleFile() override { std::filesystem::remove(path_); }
  Plan plan_with(const std::string& text, int pp = 2, int chunks = 1, int microbatches = 4) {
    write_file_atomically(path_, text);
    return pipeline_plan(kTied, pp, {"file:" + path_, chunks}, microbatches);
  }
  std::string path_ = ::testing::TempDir() + "quatrain_lower_test.csv";
};

TEST_F(ScheduleFile, RunsAsTheGeneratorItCameFrom) {
  for (const PipelineLayout& layout : kLayouts) {
    const Plan named = pipeline_plan(kTied, 2, layout, 6);
    const Schedule schedule = plan_schedule(named);
    Plan read = plan_with(to_csv(schedule), 2, layout.chunks, 6);
    EXPECT_EQ(lowered_schedule(kTied, read, {}), lowered_schedule(kTied, named, {}));
    read = plan_with(to_csv(with_messages(schedule)), 2, layout.chunks, 6);
    EXPECT_EQ(lowered_schedule(kTied, read, {}), lowered_schedule(kTied, named, {}));
  }
}

TEST_F(ScheduleFile, MustFitThePlan) {
  const std::string rows = to_csv(one_f_one_b(2, 4));
  EXPECT_EQ(refusal(plan_with(rows)), "");
  EXPECT_THAT(refusal(plan_with(rows, 4)), HasSubstr("has 2 rows, not 4; pp = 4: a row a rank"));
  EXPECT_THAT(refusal(plan_with(rows, 2, 3)), HasSubstr("has 2 stages, not 6; pp 2 x chunks 3"));
  EXPECT_THAT(refusal(plan_with(rows, 2, 1, 5)), HasSubstr("has 4 micro-batches, not 5"));
}

TEST_F(ScheduleFile, IsProvedAndQuoted) {
  EXPECT_THAT(refusal(plan_with("0F0,0B0,0F1\n1F0,1B0,1F1,1B1\n", 2, 1, 2)),
              HasSubstr("0B1 is missing"));
  EXPECT_THAT(refusal(plan_with("0F0,0Q0\n1F0,1B0\n", 2, 1, 1)),
              HasSubstr("row 1, column 2: \"0Q0\" is not an action"));
  const std::string units = refusal(plan_with("0UNSHARD,0F0,0B0\n1F0,1B0\n", 2, 1, 1));
  EXPECT_THAT(units, HasSubstr("0UNSHARD at rank 0, action 0; a run adds these itself"));
  EXPECT_THAT(units, HasSubstr(path_));
  EXPECT_THAT(refusal(plan_with("0F0,0B0,0F0@1,0B0@1\n", 1, 1, 1)), HasSubstr("replicas"));
}

TEST(Lower, TwoReplicasAreRefused) {
  const std::string text = refusal(pipeline_plan(kTied, 2, {"dualpipe", 1}));
  EXPECT_THAT(text, HasSubstr("every rank would hold two copies of its parameters"));
  EXPECT_THAT(text, HasSubstr("dualpipe-v"));
  EXPECT_EQ(refusal(pipeline_plan(kTied, 2, {"dualpipe-v", 2})), "");
}

// Without ranks that reduce, all schedules are proved as they will run, messages and all.
TEST(Lower, EveryScheduleIsProvedWithItsMessages) {
  for (const ScheduleInfo& info : schedule_table()) {
    if (info.placement == StagePlacement::kDual) continue;
    const int chunks = std::max(info.min_chunks, std::min(info.max_chunks, 2));
    for (const int pp : {1, 2, 4}) {
      const Plan plan = pipeline_plan(kTied, pp, {std::string(info.name), chunks}, 8);
      const Schedule rows = lowered_schedule(kTied, plan, {});
      EXPECT_EQ(to_string(check(rows)), "") << info.name;
      const bool copies = pp > 1 && info.placement != StagePlacement::kV;
      for (int rank = 0; rank < pp; ++rank) {
        const std::vector<Action>& row = rows.per_rank[static_cast<std::size_t>(rank)];
        EXPECT_EQ(count(row, ActionKind::kOptimizerStep), chunks);
        EXPECT_EQ(count(row, ActionKind::kReduceTied),
                  copies && (rank == 0 || rank == pp - 1) ? 1 : 0);
        EXPECT_EQ(count(row, ActionKind::kSendForward) == 0,
                  pp == 1 || (rank == pp - 1 && chunks == 1));
        for (const Action& action : row) EXPECT_FALSE(action.overlap) << to_string(action);
        EXPECT_TRUE(pp > 1 || count(row, ActionKind::kRecvForward) == 0);
      }
    }
  }
}

// REDUCE_TIED sums what REDUCE_GRADs have made whole, once.
TEST(Lower, TiedCopiesAreSummedBehindTheirReductions) {
  for (const PipelineLayout& layout : kLayouts) {
    for (int zero = 0; zero <= 3; ++zero) {
      for (const bool once : {false, true}) {
        for (const int tp : {1, 2}) {
          Plan plan = pipeline_plan(kTied, 2, layout);
          plan.zero_stage = zero;
          plan.reduce_once = once;
          degree(plan, Axis::kDpShard) = 2;
          degree(plan, Axis::kTp) = tp;
          for (const std::vector<Action>& row : lowered_schedule(kTied, plan, {}).per_rank) {
            bool summed = false;
            for (const Action& action : row) {
              const bool late =
                  action.kind == ActionKind::kOptimizerStep || action.kind == ActionKind::kUnshard;
              EXPECT_TRUE(!summed || late) << to_string(action) << " " << layout.schedule;
              summed = summed || action.kind == ActionKind::kReduceTied;
            }
            EXPECT_EQ(summed, layout.schedule != "zb-v");
            EXPECT_GT(count(row, ActionKind::kReduceGrad), 0);
          }
        }
      }
    }
  }
}

TEST(Lower, OnlyATrainedTableOfTwoRanksIsSummed) {
  const auto sums = [](const ModelSpec& model, const std::vector<std::string>& trainable) {
    const Schedule rows = lowered_schedule(model, pipeline_plan(model, 2), trainable);
    return count(rows.per_rank[0], ActionKind::kReduceTied) +
           count(rows.per_rank[1], ActionKind::kReduceTied);
  };
  EXPECT_EQ(sums(kTied, {}), 2);
  EXPECT_EQ(sums(kTied, {"*.h.*"}), 0);
  EXPECT_EQ(sums(kTied, {"*wte*", "*ln_f*"}), 2);
  EXPECT_EQ(sums(with_layers(llama_like(), 8), {}), 0);
}

// Under a V the rank of both ends reduces and gathers its one table as one unit.
TEST(Lower, OneTableOfTwoStagesIsOneUnit) {
  Plan plan = pipeline_plan(kTied, 2, {"zb-v", 2}, 4);
  degree(plan, Axis::kDpShard) = 2;
  for (int zero = 0; zero <= 2; ++zero) {
    plan.zero_stage = zero;
    const std::vector<Action> row = lowered_schedule(kTied, plan, {}).per_rank[0];
    int reduces = 0, gathers = 0;
    for (const Action& action : row) {
      if (action.unit != 0) continue;
      reduces += action.kind == ActionKind::kReduceGrad ? 1 : 0;
      gathers += action.kind == ActionKind::kUnshard ? 1 : 0;
    }
    EXPECT_EQ(reduces, zero == 2 ? 4 : 1);
    EXPECT_EQ(gathers, zero == 0 ? 0 : 1);
  }
}

TEST(Lower, GatherOnceIsThePlans) {
  Plan plan = pipeline_plan(kTied, 2, {"looped-bfs", 2}, 4);
  degree(plan, Axis::kDpShard) = 2;
  plan.zero_stage = 3;
  const auto gathers = [&] {
    return count(lowered_schedule(kTied, plan, {}).per_rank[1], ActionKind::kUnshard);
  };
  const int often = gathers();
  plan.gather_once = true;
  EXPECT_LT(gathers(), often);
}

// What a configuration may name is what there is, but for two replicas.
TEST(PlanSchedule, EveryGeneratorCanBeNamed) {
  std::set<std::string_view> want{"file:PATH"};
  for (const std::string_view name : schedule_names()) {
    if (name != "dualpipe") want.insert(name);
  }
  const auto& names = runnable_schedules();
  EXPECT_EQ(std::set<std::string_view>(names.begin(), names.end()), want);
}

}  // namespace
}  // namespace quatrain
