// SPDX-License-Identifier: Apache-2.0
// Steps against bounds, and against runs that papers printed.
#include "quatrain/planner/estimate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

Job job_of(const char* model, const char* cluster_name, int gpus, std::int64_t batch,
           std::int64_t seq) {
  Job job;
  job.model = catalog_model(model).spec;
  job.cluster = cluster(cluster_name);
  job.gpus = gpus;
  job.seq = seq;
  job.global_batch = batch;
  return job;
}

Geometry geometry(int tp, int pp, int dp, std::int64_t microbatches) {
  Geometry g;
  g.tp = tp;
  g.pp = pp;
  g.dp_shard = dp;
  g.zero = dp > 1 ? 1 : 0;
  g.sequence_parallel = g.gather_again = tp > 1;
  g.microbatches = microbatches;
  return g;
}

TEST(Estimate, PartsSumToTheStep) {
  const Job job = job_of("llama-3.1-8b", "h100-sxm-80gb", 64, 256, 4096);
  Estimator estimator(job);
  for (const Geometry& g : {geometry(2, 4, 8, 32), geometry(8, 1, 8, 32), geometry(1, 8, 8, 32)}) {
    for (const Estimate& e : {estimator.estimate(g), estimator.clocked(g).estimate}) {
      EXPECT_DOUBLE_EQ(e.step, e.parts.sum());
      EXPECT_GE(e.parts.bubble, 0.0);
      EXPECT_GT(e.step * 64 * job.cluster.peak_bf16, e.model_flops);
      EXPECT_NEAR(e.mfu, e.model_flops / (e.step * 64 * job.cluster.peak_bf16), 1e-12);
    }
  }
}

TEST(Estimate, ModelFlopsAreTheWalks) {
  for (const char* name : {"llama-3.1-8b", "deepseek-v3", "gpt2", "qwen3-30b-a3b"}) {
    const Job job = job_of(name, "h100-sxm-80gb", 8, 8, 4096);
    EXPECT_DOUBLE_EQ(LayerTable(job).model_flops_per_sequence(),
                     model_flops(job.model, 1, 4096).value)
        << name;
  }
}

// Products that are bound by computing take as much longer as there are more rows; with all experts
// on each rank there is nobody to wait for.
TEST(Estimate, ACrowdedRankOfExpertsHoldsUpTheOthers) {
  Job job = job_of("mixtral-8x7b", "h100-sxm-80gb", 64, 256, 4096);
  Geometry g = geometry(1, 4, 16, 16);
  const double whole = Estimator(job).estimate(g).step;
  g.ep = 8;
  const Estimate even = Estimator(job).estimate(g);
  job.expert_imbalance = 1.5;
  const Estimate crowded = Estimator(job).estimate(g);
  EXPECT_NEAR(crowded.parts.exposed_ep, 1.5 * even.parts.exposed_ep, 0.05 * even.parts.exposed_ep);
  EXPECT_GT(crowded.parts.compute, 1.2 * even.parts.compute);
  EXPECT_LT(crowded.parts.compute, 1.5 * even.parts.compute);
  job.expert_imbalance = 100;  // no rank gets more than all of them
  EXPECT_LT(Estimator(job).estimate(g).parts.compute, 8 * even.parts.compute);
  g.ep = 1;
  EXPECT_EQ(Estimator(job).estimate(g).step, whole);
}

// Of geometries that differ in data ranks alone layers are timed once; the next stage is further.
TEST(Estimate, MessagesTakeTheLinkBetweenStages) {
  const Job job = job_of("llama-3.1-8b", "h100-sxm-80gb", 64, 256, 4096);
  const Geometry near = geometry(2, 4, 2, 32), far = geometry(2, 4, 8, 32);
  LayerTable table(job);
  const MicrobatchTimes& times = table.at(near);
  EXPECT_EQ(&times, &table.at(far));
  EXPECT_GT(message_seconds(job, times, far), 2 * message_seconds(job, times, near));
  Estimator estimator(job);
  EXPECT_GT(estimator.clocked(far).estimate.parts.exposed_pp,
            estimator.clocked(near).estimate.parts.exposed_pp);
}

// All forwards of gpipe come before all backwards, so a head that does its three passes in the
// forward keeps other stages waiting there; with 1f1b both stand side by side.
TEST(Estimate, TheHeadIsDoneInTheForward) {
  Job job = job_of("llama-3.1-8b", "h100-sxm-80gb", 2, 8, 4096);
  Geometry g = geometry(1, 2, 1, 8);
  const LayerTimes own = LayerTable(job).at(g).head;
  job.cluster.whole_logits = 6;
  const LayerTimes other = LayerTable(job).at(g).head;
  EXPECT_EQ(own.input + own.weight, 0.0);
  EXPECT_NEAR(own.forward, other.compute(), 1e-12);
  EXPECT_GT(other.weight, 0.0);
  const auto step = [&](const char* schedule) {
    g.schedule = schedule;
    return Estimator(job).clocked(g).estimate.step;
  };
  const double apart = step("gpipe") / step("1f1b");
  job.cluster.whole_logits = 0;
  EXPECT_GT(step("gpipe") / step("1f1b"), apart);
}

TEST(Estimate, AStepCostsTheSameToPriceHoweverLong) {
  const Job job = job_of("llama-3.1-8b", "h100-sxm-80gb", 8, 1 << 20, 4096);
  Estimator estimator(job);
  const ClockedStep step = estimator.clocked(geometry(1, 8, 1, 1 << 20));
  EXPECT_LT(step.timeline.per_rank.front().size(), 200U);
  EXPECT_GT(step.estimate.step, 1e4);
}

TEST(Estimate, Fp8IsFasterWhereProductsAreLong) {
  Job job = job_of("llama-3.1-70b", "h100-sxm-80gb", 64, 64, 8192);
  const Geometry g = geometry(8, 4, 2, 32);
  const double bf16 = Estimator(job).clocked(g).estimate.step;
  job.fp8_products = true;
  const double fp8 = Estimator(job).clocked(g).estimate.step;
  EXPECT_LT(fp8, 0.85 * bf16);
  EXPECT_GT(fp8, 0.5 * bf16);
}

TEST(Estimate, ContextParallelismDividesRowsAndAttention) {
  const Job job = job_of("llama-3.1-8b", "h100-sxm-80gb", 8, 8, 65536);
  Geometry one, two;
  one.microbatches = two.microbatches = 8;
  two.cp = 2;
  Estimator estimator(job);
  const Estimate a = estimator.estimate(one), b = estimator.estimate(two);
  EXPECT_NEAR(b.parts.compute, a.parts.compute / 2, 0.02 * a.parts.compute);
  EXPECT_NEAR(b.memory.activations, a.memory.activations / 2, 0.01 * a.memory.activations);
  EXPECT_GT(b.parts.exposed_cp, 0);
}

// Models of Narayanan et al., arXiv:2104.04473, and Korthikanti et al., arXiv:2205.05198.
ModelSpec megatron(std::int64_t layers, std::int64_t hidden, std::int64_t heads) {
  ModelSpec m = catalog_model("gpt2").spec;
  m.layers = layers;
  m.hidden = hidden;
  m.heads = m.kv_heads = heads;
  m.head_dim = hidden / heads;
  m.ffn = 4 * hidden;
  m.vocab = 51200;
  m.max_positions = 2048;
  return m;
}

// Their software writes all scores, fuses less, makes whole blocks again and overlaps nothing with
// tp.
Job megatron_job(const ModelSpec& model, int gpus, std::int64_t batch) {
  Job job;
  job.model = model;
  job.cluster = cluster("a100-sxm-80gb");
  job.cluster.score_bytes = 13;
  job.cluster.pass_factor = 1.5;
  job.cluster.whole_again = 1;
  job.cluster.whole_logits = 6;
  job.gpus = gpus;
  job.seq = 2048;
  job.global_batch = batch;
  return job;
}

TEST(Published, NarayananTable1) {
  struct Row {
    std::int64_t heads, hidden, layers;
    int tp, pp, gpus;
    std::int64_t batch, micro_batch;
    double seconds;
  };
  const Row rows[] = {{24, 2304, 24, 1, 1, 32, 512, 4, 3.53},
                      {32, 3072, 30, 2, 1, 64, 512, 4, 3.70},
                      {32, 4096, 36, 4, 1, 128, 512, 4, 3.70},
                      {48, 6144, 40, 8, 1, 256, 1024, 4, 9.40},
                      {64, 8192, 48, 8, 2, 512, 1536, 2, 14.45},
                      {80, 10240, 60, 8, 4, 1024, 1792, 2, 16.06},
                      {96, 12288, 80, 8, 8, 1536, 2304, 2, 24.82},
                      {128, 16384, 96, 8, 16, 1920, 2160, 1, 37.61},
                      {128, 20480, 105, 8, 35, 2520, 2520, 1, 54.08},
                      {160, 25600, 128, 8, 64, 3072, 3072, 1, 102.63}};
  double sum = 0;
  for (const Row& row : rows) {
    const Job job = megatron_job(megatron(row.layers, row.hidden, row.heads), row.gpus, row.batch);
    const int dp = row.gpus / (row.tp * row.pp);
    Geometry g = geometry(row.tp, row.pp, dp, row.batch / (dp * row.micro_batch));
    g.zero = 0;
    g.sequence_parallel = g.gather_again = false;
    g.micro_batch = row.micro_batch;
    g.recompute = Recompute::kFull;
    const double error = Estimator(job).clocked(g).estimate.step / row.seconds - 1;
    EXPECT_NEAR(error, 0, 0.07) << row.hidden;
    sum += std::abs(error);
  }
  EXPECT_LT(sum / 10, 0.03);
}

TEST(Published, KorthikantiTable5) {
  struct Row {
    std::int64_t heads, hidden, layers;
    int pp, chunks, gpus;
    std::int64_t batch, micro_batch;
    double full, none;  // seconds with full recomputation; with sequence parallelism and selective
  };
  const Row rows[] = {{64, 6144, 48, 1, 1, 8, 4, 4, 1.42, 1.10},
                      {96, 12288, 96, 8, 3, 64, 64, 1, 18.13, 13.75},
                      {128, 20480, 105, 35, 3, 280, 280, 1, 49.05, 37.83},
                      {160, 25600, 128, 64, 1, 512, 512, 1, 94.42, 71.49}};
  double sum = 0;
  for (const Row& row : rows) {
    const Job job = megatron_job(megatron(row.layers, row.hidden, row.heads), row.gpus, row.batch);
    for (const bool full : {true, false}) {
      Geometry g = geometry(8, row.pp, 1, row.batch / row.micro_batch);
      g.micro_batch = row.micro_batch;
      g.chunks = row.chunks;
      if (g.chunks > 1) g.schedule = "interleaved-1f1b";
      g.sequence_parallel = g.gather_again = !full;
      g.recompute = full ? Recompute::kFull : Recompute::kSelective;
      const double error =
          Estimator(job).clocked(g).estimate.step / (full ? row.full : row.none) - 1;
      EXPECT_NEAR(error, 0, 0.08) << row.hidden << " full " << full;
      sum += std::abs(error);
    }
  }
  EXPECT_LT(sum / 8, 0.04);
}

// Grattafiori et al., arXiv:2407.21783, table 4: TFLOP/s a GPU.
TEST(Published, Llama3405B) {
  struct Row {
    int gpus, cp, dp;
    std::int64_t seq, batch;
    double teraflops;
  };
  const Row rows[] = {{8192, 1, 64, 8192, 2048, 430},
                      {16384, 1, 128, 8192, 2048, 400},
                      {16384, 16, 8, 131072, 128, 380}};
  for (const Row& row : rows) {
    const Job job = job_of("llama-3.1-405b", "h100-sxm-80gb", row.gpus, row.batch, row.seq);
    Geometry g = geometry(8, 16, row.dp, row.batch / row.dp);
    g.cp = row.cp;
    g.cp_style = {"all_gather"};  // section 3.3.2
    g.chunks = 7;
    g.schedule = "interleaved-1f1b";
    const Estimate e = Estimator(job).clocked(g).estimate;
    const double teraflops = e.model_flops / e.step / row.gpus / 1e12;
    EXPECT_NEAR(teraflops, row.teraflops, 0.12 * row.teraflops) << row.gpus << " cp" << row.cp;
  }
}

}  // namespace
}  // namespace quatrain
