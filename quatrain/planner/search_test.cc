// SPDX-License-Identifier: Apache-2.0
// What the planner chooses, beside what was chosen for runs that are known.
#include "quatrain/planner/search.h"

#include <gmock/gmock.h>

#include <ctime>

#include "quatrain/base/error.h"
#include "quatrain/planner/explain.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

struct Asked {
  const char* model;
  const char* cluster_name;
  int gpus;
  std::int64_t seq, batch;
};
Job job_of(const Asked& asked) {
  Job job;
  job.model = catalog_model(asked.model).spec;
  job.cluster = cluster(asked.cluster_name);
  job.gpus = asked.gpus;
  job.seq = asked.seq;
  job.global_batch = asked.batch;
  return job;
}

RankedPlan best(const Job& job, const char* fixed = "") {
  SearchRequest request;
  request.fixed = parse_fixed(fixed);
  request.top = 1;
  const SearchResult result = search(job, request);
  if (result.plans.empty()) throw ConfigError(why_nothing(job, result));
  return result.plans.front();
}

TEST(Search, PlansFitAndUseEveryAccelerator) {
  const Job job = job_of({"llama-3.1-8b", "h100-sxm-80gb", 16, 8192, 64});
  const SearchResult result = search(job, SearchRequest{});
  ASSERT_EQ(result.plans.size(), 5U);
  double before = 0;
  for (const RankedPlan& plan : result.plans) {
    const Geometry& g = plan.geometry;
    EXPECT_EQ(g.world(), 16);
    EXPECT_EQ(g.micro_batch * g.microbatches * g.dp(), 64);
    EXPECT_LE(plan.estimate.memory.sum(), job.cluster.memory_bytes);
    EXPECT_GE(plan.estimate.step, before);
    before = plan.estimate.step;
  }
  EXPECT_FALSE(result.refused.empty());
}

TEST(Search, DominatedPlansAreNotTheBest) {
  const Job job = job_of({"llama-3.1-70b", "h100-sxm-80gb", 64, 8192, 128});
  // With every plan kept, none is left out as dominated.
  SearchRequest all;
  all.top = 100'000;
  const SearchResult whole = search(job, all);
  EXPECT_EQ(whole.dominated, 0);
  const SearchResult quick = search(job, SearchRequest{});
  EXPECT_GT(quick.dominated, 0);
  EXPECT_NEAR(quick.plans.front().estimate.step, whole.plans.front().estimate.step,
              0.005 * whole.plans.front().estimate.step);
}

TEST(Search, case_164_WhatCannotFitSaysWhatWould) {
  const Job job = job_of({"llama-3.1-405b", "h100-sxm-80gb", 1, 8192, 64});
  const SearchResult result = search(job, SearchRequest{});
  EXPECT_TRUE(result.plans.empty());
  ASSERT_TRUE(result.nearest.has_value());
  EXPECT_THAT(why_nothing(job, result), ::testing::HasSubstr("of 74.51 GiB"));
  const std::optional<int> fewest = fewest_gpus(job, SearchRequest{});
  ASSERT_TRUE(fewest.has_value());
  EXPECT_GE(*fewest * job.cluster.memory_bytes, 18.0 * 405e9);
  Job larger = job;
  larger.gpus = *fewest;
  EXPECT_LE(best(larger).estimate.memory.sum(), job.cluster.memory_bytes);
}

TEST(Search, FewestThatReachARate) {
  const Job job = job_of({"llama-3.1-8b", "h100-sxm-80gb", 1, 8192, 64});
  const std::optional<int> fit = fewest_gpus(job, SearchRequest{});
  const std::optional<int> fast = fewest_gpus(job, SearchRequest{}, 100'000);
  ASSERT_TRUE(fit && fast);
  EXPECT_LT(*fit, *fast);
}

TEST(Search, ObjectiveMemory) {
  const Job job = job_of({"llama-3.1-8b", "h100-sxm-80gb", 16, 8192, 64});
  SearchRequest least;
  least.objective = Objective::kMemory;
  EXPECT_LT(search(job, least).plans.front().estimate.memory.sum(),
            0.5 * best(job).estimate.memory.sum());
}

TEST(Search, FixedKeysHold) {
  const Job job = job_of({"mixtral-8x7b", "h100-sxm-80gb", 64, 4096, 256});
  const Geometry g = best(job, "tp=2,ep=8,etp=1,pp=4,micro_batch=2,schedule=1f1b,zero=1").geometry;
  EXPECT_EQ(g.tp, 2);
  EXPECT_EQ(g.ep, 8);
  EXPECT_EQ(g.etp, 1);
  EXPECT_EQ(g.pp, 4);
  EXPECT_EQ(g.dp(), 8);
  EXPECT_EQ(g.micro_batch, 2);
  EXPECT_EQ(g.schedule, "1f1b");
  EXPECT_EQ(g.zero, 1);
  EXPECT_THROW(parse_fixed("tq=8"), ConfigError);
  EXPECT_THROW(parse_fixed("tp=x"), ConfigError);
  EXPECT_THROW(parse_fixed("tp=0"), ConfigError);
  EXPECT_THROW(parse_fixed("zero=4"), ConfigError);
  EXPECT_THROW(parse_fixed("recompute=some"), ConfigError);
  EXPECT_THROW(parse_fixed("schedule=zb-h9"), ConfigError);
}

TEST(Search, SchedulesOutsideTheSearchCanBeFixed) {
  const Job job = job_of({"llama-3.1-8b", "h100-sxm-80gb", 8, 4096, 64});
  for (const char* name : {"v-half", "zb-h2", "interleaved-zb1p", "gpipe", "looped-bfs"}) {
    const RankedPlan plan = best(job, (std::string("pp=4,schedule=") + name).c_str());
    EXPECT_EQ(plan.geometry.schedule, name);
    EXPECT_GE(plan.estimate.parts.bubble, 0);
  }
}

TEST(Search, StylesOfContext) {
  const Job job = job_of({"llama-3.1-8b", "h100-sxm-80gb", 64, 1 << 17, 64});
  double fastest = 1e9;
  for (const char* style : {"ring", "all_gather", "ulysses", "hybrid"}) {
    const RankedPlan plan = best(job, (std::string("cp=8,cp_style=") + style).c_str());
    EXPECT_EQ(plan.geometry.cp_style.name, style);
    fastest = std::min(fastest, plan.estimate.step);
  }
  // What is left out as no better is not.
  EXPECT_NEAR(best(job, "cp=8").estimate.step, fastest, 0.002 * fastest);
  EXPECT_EQ(best(job, "cp=8,cp_heads=4").geometry.cp_style, (ContextStyle{"hybrid", 4}));
  EXPECT_GT(best(job, "cp=8,cp_style=ring,cp_balance=contiguous").estimate.step,
            1.2 * best(job, "cp=8,cp_style=ring").estimate.step);
  // 32 heads.
  SearchRequest request;
  request.fixed = parse_fixed("cp=64,cp_style=ulysses");
  EXPECT_THAT(why_nothing(job, search(job, request)), ::testing::HasSubstr("share the heads"));
  EXPECT_THROW(parse_fixed("cp_style=star"), ConfigError);
  EXPECT_THROW(parse_fixed("cp_balance=even"), ConfigError);
}

TEST(Search, SequencesOfAnyLengthAreShared) {
  const Job job = job_of({"llama-3.1-8b", "h100-sxm-80gb", 64, (1 << 17) + 1, 64});
  EXPECT_EQ(best(job, "cp=8").geometry.cp, 8);
}

TEST(Search, WhyNotNamesWhatGrows) {
  const Job job = job_of({"llama-3.1-70b", "h100-sxm-80gb", 64, 8192, 128});
  const RankedPlan first = best(job);
  SearchRequest request;
  request.fixed = parse_fixed("tp=1,pp=1,zero=0");
  request.must_fit = false;
  const RankedPlan whole = search(job, request).plans.front();
  EXPECT_THAT(why_not(job, first, whole), ::testing::StartsWith("does not fit"));
  const RankedPlan other = best(job, "tp=8,pp=8");
  EXPECT_THAT(why_not(job, first, other), ::testing::HasSubstr("% time, most of it"));
}

TEST(Search, ExplainsInTheOrderOfTheGoldenRule) {
  const Job job = job_of({"llama-3.1-405b", "h100-sxm-80gb", 16384, 8192, 2048});
  const std::vector<std::string> lines = explain(job, search(job, SearchRequest{}), 32e6);
  const auto at = [&](const char* what) {
    const auto found = std::find_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(what) != std::string::npos;
    });
    EXPECT_NE(found, lines.end()) << what;
    return found - lines.begin();
  };
  EXPECT_LT(at("the whole model on each"), at("tp 8: inside the fast domain"));
  EXPECT_LT(at("tp 8: inside"), at("pp 16: over the network"));
  EXPECT_LT(at("pp 16: over"), at("dp 128:"));
  EXPECT_LT(at("dp 128:"), at("tokens an accelerator"));
  EXPECT_LT(at("tokens an accelerator"), at("critical"));
}

// Narayanan et al., arXiv:2104.04473, table 1: tp grows to a node, then pp, and dp shrinks.
TEST(Chosen, NarayananTable1) {
  struct Row {
    std::int64_t heads, hidden, layers;
    int tp, pp, gpus;
    std::int64_t batch, micro_batch;
  };
  const Row rows[] = {
      {24, 2304, 24, 1, 1, 32, 512, 4},        {32, 3072, 30, 2, 1, 64, 512, 4},
      {32, 4096, 36, 4, 1, 128, 512, 4},       {48, 6144, 40, 8, 1, 256, 1024, 4},
      {64, 8192, 48, 8, 2, 512, 1536, 2},      {80, 10240, 60, 8, 4, 1024, 1792, 2},
      {96, 12288, 80, 8, 8, 1536, 2304, 2},    {128, 16384, 96, 8, 16, 1920, 2160, 1},
      {128, 20480, 105, 8, 35, 2520, 2520, 1}, {160, 25600, 128, 8, 64, 3072, 3072, 1}};
  int model_ranks = 1;
  for (const Row& row : rows) {
    Job job = job_of({"gpt2", "a100-sxm-80gb", row.gpus, 2048, row.batch});
    ModelSpec& m = job.model;
    m.layers = row.layers;
    m.hidden = row.hidden;
    m.heads = m.kv_heads = row.heads;
    m.head_dim = m.hidden / m.heads;
    m.ffn = 4 * m.hidden;
    m.vocab = 51200;
    m.max_positions = 2048;
    const RankedPlan plan = best(job);
    const Geometry& g = plan.geometry;
    EXPECT_LE(g.tp, 8) << row.hidden;
    EXPECT_GE(g.tp * g.pp, model_ranks) << row.hidden;
    model_ranks = std::max(1, g.tp * g.pp / 2);
    Geometry paper;
    paper.tp = row.tp;
    paper.pp = row.pp;
    paper.dp_shard = row.gpus / (row.tp * row.pp);
    paper.micro_batch = row.micro_batch;
    paper.microbatches = row.batch / (paper.dp_shard * row.micro_batch);
    paper.recompute = Recompute::kFull;
    EXPECT_LE(plan.estimate.step, 1.03 * Estimator(job).clocked(paper).estimate.step);
  }
}

TEST(Chosen, Llama3405BIsCutAsMetaDid) {
  const Geometry g = best(job_of({"llama-3.1-405b", "h100-sxm-80gb", 16384, 8192, 2048})).geometry;
  EXPECT_EQ(g.tp, 8);
  EXPECT_EQ(g.pp, 16);
  EXPECT_EQ(g.dp(), 128);
  EXPECT_EQ(g.cp, 1);
}

TEST(Chosen, OnATorusNoPipeline) {
  const Geometry g = best(job_of({"qwen3-32b", "tpu-v5p", 4096, 8192, 1024})).geometry;
  EXPECT_EQ(g.pp, 1);
}

TEST(Chosen, ManyExpertsAreSpreadAndWhole) {
  const Geometry deepseek =
      best(job_of({"deepseek-v3", "h100-sxm-80gb", 2048, 4096, 15360})).geometry;
  EXPECT_GE(deepseek.ep, 8);
  EXPECT_EQ(deepseek.etp, 1);
  const Geometry qwen =
      best(job_of({"qwen3-235b-a22b", "h100-sxm-80gb", 512, 4096, 2048})).geometry;
  EXPECT_EQ(qwen.etp, 1);
}

TEST(Chosen, AMillionTokensAreCutAlongTheSequence) {
  const Geometry g = best(job_of({"llama-3.1-8b", "h100-sxm-80gb", 64, 1 << 20, 8})).geometry;
  EXPECT_GT(g.cp, 1);
}

TEST(Chosen, OneSmallAccelerator) {
  Job job = job_of({"qwen2.5-0.5b", "a100-sxm-40gb", 1, 2048, 32});
  job.cluster.memory_bytes = 24e9;
  EXPECT_EQ(best(job).geometry.world(), 1);
  job.model = catalog_model("llama-3.1-8b").spec;
  EXPECT_TRUE(search(job, SearchRequest{}).plans.empty());
}

// Seconds of this process's cores.
double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TEST(Speed, TheLargestSearch) {
  const Job job = job_of({"llama-3.1-405b", "h100-sxm-80gb", 16384, 131072, 2048});
  const double begin = cpu_seconds();
  const SearchResult result = search(job, SearchRequest{});
  const double took = cpu_seconds() - begin;
  EXPECT_FALSE(result.plans.empty());
  EXPECT_LT(took, 2.0);
  RecordProperty("evaluated", static_cast<int>(result.evaluated));
}

// Estimates of memory and, where a plan fits, of time; the fastest of three, since others may run.
double plans_a_second(const Job& job) {
  SearchRequest request;
  request.top = 1;
  double most = 0;
  for (int run = 0; run < 3; ++run) {
    const double begin = cpu_seconds();
    const SearchResult result = search(job, request);
    const double rate = static_cast<double>(result.evaluated) / (cpu_seconds() - begin);
    most = std::max(most, rate);
  }
  return most;
}

TEST(Speed, PlansASecond) {
  EXPECT_GT(plans_a_second(job_of({"llama-3.1-405b", "h100-sxm-80gb", 16384, 131072, 2048})), 1e5);
  EXPECT_GT(plans_a_second(job_of({"deepseek-v3", "h100-sxm-80gb", 2048, 4096, 15360})), 1e5);
}

}  // namespace
}  // namespace quatrain
