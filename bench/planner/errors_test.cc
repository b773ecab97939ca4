// SPDX-License-Identifier: Apache-2.0
#include "bench/planner/errors.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

namespace quatrain::bench {
namespace {

Judged row(PublishedRun& run, double measured, double predicted, bool failed = false,
           bool fits = true) {
  run.seconds = failed ? std::numeric_limits<double>::quiet_NaN() : measured;
  run.failed = failed;
  run.contest = "one";
  return {&run, {.seconds = predicted, .fits = fits, .possible = true}};
}

TEST(ErrorsTest, OfTimes) {
  std::array<PublishedRun, 4> runs;
  const std::vector<Judged> judged = {row(runs[0], 1, 1.1), row(runs[1], 2, 1.6),
                                      row(runs[2], 4, 4.0), row(runs[3], 0, 9, true, false)};
  const Errors errors = time_errors(judged);
  EXPECT_EQ(errors.n, 3);
  EXPECT_NEAR(errors.median, 0.1, 1e-9);
  EXPECT_NEAR(errors.worst, 0.2, 1e-9);
  EXPECT_NEAR(errors.mean, 0.1, 1e-9);
  EXPECT_NEAR(errors.bias, (0.1 - 0.2) / 3, 1e-9);
}

TEST(ErrorsTest, FeasibilityAndChoices) {
  std::array<PublishedRun, 4> runs;
  // The planner's favourite failed.
  std::vector<Judged> judged = {row(runs[0], 1, 1.5), row(runs[1], 2, 2.5), row(runs[2], 4, 5),
                                row(runs[3], 0, 1, true, true)};
  EXPECT_EQ(feasibility(judged).right, 3);
  EXPECT_EQ(feasibility(judged).false_fits, 1);
  EXPECT_EQ(choices(judged).within_5_percent, 0);
  judged[3].prediction.fits = false;
  EXPECT_EQ(feasibility(judged).right, 4);
  EXPECT_EQ(choices(judged).within_5_percent, 1);
  EXPECT_DOUBLE_EQ(choices(judged).median_tau, 1);
}

TEST(ErrorsTest, KendallTau) {
  const std::array a = {1.0, 2.0, 3.0};
  EXPECT_DOUBLE_EQ(kendall_tau(a, a), 1);
  EXPECT_DOUBLE_EQ(kendall_tau(a, std::array{3.0, 2.0, 1.0}), -1);
  EXPECT_NEAR(kendall_tau(a, std::array{1.0, 3.0, 2.0}), 1.0 / 3, 1e-12);
}

// A made-up table in nanotron's form: three models whose steps are 1.25 times the planner's.
TEST(FitTest, ConstantsComeFromOtherModelsOnly) {
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / "tables";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "playbook_nanotron_sweep.csv")
      << "model,nodes,mbs,grad_acc,gbs,dp,pp,tp,zero,tokens_per_s_per_gpu,peak_gpu_mem_gb,status,"
         "layers,hidden,heads,kv_heads,ffn,vocab,embeddings\n"
         "a,1,1,2,16,8,1,1,0,1000,10,ok,4,1024,8,8,4096,32000,untied\n"
         "b,1,1,2,16,8,1,1,0,1000,10,ok,8,1024,8,8,4096,32000,untied\n"
         "c,1,1,2,16,8,1,1,0,,,oom,8,2048,16,16,8192,32000,untied\n";
  std::vector<PublishedRun> runs = published_runs(folder.string());
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_TRUE(runs[2].failed);
  for (PublishedRun& run : runs) run.seconds = 1.25 * predict(run, {}).seconds;
  const std::vector<Judged> judged = judged_unseen(runs, 1);
  ASSERT_EQ(judged.size(), 3U);
  EXPECT_LT(time_errors(judged).worst, 0.1);
  // A model alone cannot be fitted by itself.
  const std::vector<PublishedRun> alone = {runs[0]};
  EXPECT_NEAR(time_errors(judged_unseen(alone, 1)).worst, 0.2, 1e-6);
}

}  // namespace
}  // namespace quatrain::bench
