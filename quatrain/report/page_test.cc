// SPDX-License-Identifier: Apache-2.0
#include "quatrain/report/page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/mesh/mesh.h"
#include "quatrain/report/run_charts.h"
#include "quatrain/report/timeline.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string line(int step, double loss) {
  return fmt::format(
      R"({{"step":{},"tokens":{},"loss":{},"step_ms":{},"tokens_per_s":1000,)"
      R"("peak_bytes":{{"total":300,"params":100,"activations":200}},)"
      R"("comm":{{"dp":{{"all_gather":{{"calls":1,"bytes":2048}}}},)"
      R"("control":{{"all_reduce":{{"calls":9,"bytes":8}}}}}},"exposed_comm_ms":5,"bubble_ms":2}})"
      "\n",
      step, 100 * step, loss, step == 1 ? 900 : 100);
}

Plan two_stages() {
  Plan plan;
  plan.degrees[static_cast<std::size_t>(Axis::kPp)] = 2;
  plan.degrees[static_cast<std::size_t>(Axis::kTp)] = 4;
  plan.sequence_parallel = true;
  plan.num_microbatches = 2;
  plan.stage_begin = {0, 2};
  plan.schedule = "gpipe";
  plan.seq_len = 64;
  return plan;
}

std::string event(int rank, const std::string& name, int begin_us, int end_us,
                  const std::string& lane = "compute") {
  return fmt::format(R"({{"ph":"X","name":"{}","cat":"{}","pid":{},"tid":0,"ts":{},"dur":{}}},)",
                     name, lane, rank, begin_us, end_us - begin_us);
}

// Two stages, two micro-batches: F 1 ms, B 2 ms, the optimizer 1 ms; stage 0 stands still before
// its backwards, and its second backward arrives a millisecond late.
std::string two_stage_trace() {
  std::string events = event(0, "0F0", 0, 1000) + event(0, "0F1", 1000, 2000) +
                       event(0, "0RECV_B0", 2000, 5000, "wait") + event(0, "0B0", 5000, 7000) +
                       event(0, "0RECV_B1", 7000, 8000, "wait") + event(0, "0B1", 8000, 10000) +
                       event(0, "0OPTIMIZER_STEP", 10000, 11000);
  events += event(1, "1F0", 1000, 2000) + event(1, "1F1", 2000, 3000) +
            event(1, "1B0", 3000, 5000) + event(1, "1B1", 5000, 7000) +
            event(1, "1OPTIMIZER_STEP", 7000, 8000);
  events.pop_back();
  return R"({"traceEvents":[)" + events + "]}";
}

RunTexts texts() {
  return {.folder = "runs/a<b",
          .metrics = line(1, 4) + line(2, 3) + line(3, 2.5),
          .plan = to_json(two_stages()),
          .trace = two_stage_trace()};
}

RunRecord record() {
  Problems problems;
  RunRecord run = read_run(texts(), problems);
  EXPECT_EQ(to_string(problems), "");
  return run;
}

TEST(RunTest, ReadsWhatTrainWrites) {
  const RunRecord run = record();
  EXPECT_EQ(run.name, "a<b");
  ASSERT_EQ(run.steps.size(), 3U);
  EXPECT_EQ(run.steps[2].loss, 2.5);
  EXPECT_EQ(run.steps[0].sent.at("dp").at("all_gather"), 2048);
  EXPECT_EQ(peak_bytes(run), 300);
  EXPECT_EQ(run.trace.size(), 12U);
  EXPECT_EQ(typical_step(run).step_ms, 100);  // without the first
}

TEST(RunTest, AllProblemsWithTheirPlaces) {
  RunTexts bad = texts();
  bad.metrics = line(1, 4) + "{\"step\":2}\nnonsense\n";
  bad.plan = "{";
  bad.trace = R"({"traceEvents":[{"ph":"X","name":"0Q0","cat":"compute","pid":0,"ts":0,"dur":1}]})";
  Problems problems;
  read_run(bad, problems);
  ASSERT_EQ(problems.size(), 4U) << to_string(problems);
  EXPECT_EQ(problems[0].where, "runs/a<b/metrics.jsonl:2");
  EXPECT_THAT(problems[0].what, HasSubstr("loss"));
  EXPECT_EQ(problems[1].where, "runs/a<b/metrics.jsonl:3");
  EXPECT_EQ(problems[2].where, "runs/a<b/plan.json");
  EXPECT_EQ(problems[3].where, "runs/a<b/trace.json");
}

TEST(RunTest, ALineThatACrashHasCutIsLeftOut) {
  RunTexts cut = texts();
  cut.metrics = line(1, 4) + line(2, 3).substr(0, 20);
  Problems problems;
  EXPECT_EQ(read_run(cut, problems).steps.size(), 1U);
  EXPECT_TRUE(problems.empty());
  cut.metrics = "";
  read_run(cut, problems);
  EXPECT_EQ(problems.size(), 1U);
}

TEST(RunTest, ALossThatIsNotFiniteIsNull) {
  RunTexts diverged = texts();
  diverged.metrics += R"({"step":4,"loss":null,"step_ms":1,"tokens_per_s":1})"
                      "\n";
  Problems problems;
  const RunRecord run = read_run(diverged, problems);
  EXPECT_EQ(to_string(problems), "");
  EXPECT_THAT(report_page({&run, 1}), HasSubstr("not finite"));
}

TEST(RunTest, ShortPlans) {
  EXPECT_EQ(short_text(two_stages()), "tp4+sp pp2 gpipe");
  EXPECT_EQ(short_text(Plan{}), "one rank");
}

TEST(TimelineTest, PredictedLiesOverMeasured) {
  const auto timeline = step_timeline(record());
  ASSERT_TRUE(timeline);
  EXPECT_DOUBLE_EQ(timeline->measured_ms, 11);
  // gpipe: 2 F, stage 1's second forward, 2 B there, the last B of stage 0, the optimizer.
  EXPECT_DOUBLE_EQ(*timeline->predicted_ms, 3 + 4 + 2 + 1);
  ASSERT_EQ(timeline->chart.lanes.size(), 4U);
  EXPECT_EQ(timeline->chart.lanes[0].label, "stage 0 predicted");
  EXPECT_EQ(timeline->chart.lanes[1].label, "stage 0 measured");
  EXPECT_EQ(timeline->chart.lanes[1].spans.size(), 7U);
}

TEST(TimelineTest, OnlyTheLastStepIsShown) {
  const RunRecord one = record();
  RunRecord run = one;
  for (TraceSpan span : one.trace) {
    span.begin_ms += 20;
    span.end_ms += 20;
    run.trace.push_back(span);
  }
  const auto timeline = step_timeline(run);
  ASSERT_TRUE(timeline);
  EXPECT_DOUBLE_EQ(timeline->measured_ms, 11);
  EXPECT_EQ(timeline->chart.lanes[1].spans.size(), 7U);
}

TEST(TimelineTest, NothingWithoutATrace) {
  RunRecord run = record();
  run.trace.clear();
  EXPECT_FALSE(step_timeline(run));
}

TEST(PageTest, HoldsAllPartsAndFetchesNothing) {
  RunRecord run = record();
  run.reasons = {"tp4: the model & its states need it"};
  const std::vector<RunRecord> runs = {run, run};
  const std::string page = report_page(runs);
  for (const char* part :
       {"2 runs compared", "Learning and speed", "Throughput", "Memory of the fullest rank",
        "Communication by axis", "<h2>Timeline</h2>", "<h2>Plan</h2>", "tp4+sp pp2 gpipe",
        "prefers-color-scheme:dark", "the model &amp; its states"}) {
    EXPECT_THAT(page, HasSubstr(part));
  }
  for (const char* part : {"<script", "href=", "src=", "@import", "url(", "a<b", "nan"}) {
    EXPECT_THAT(page, Not(HasSubstr(part)));
  }
  EXPECT_THAT(page, Not(HasSubstr("a<b, control")));
}

}  // namespace
}  // namespace quatrain
