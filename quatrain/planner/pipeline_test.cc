// SPDX-License-Identifier: Apache-2.0
// Closed forms of the searched schedules against their rows, on the clock.
#include "quatrain/planner/pipeline.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "quatrain/planner/search.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

struct Shape {
  std::string_view schedule;
  int ranks, chunks;
};
std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int p : {2, 3, 4, 8}) {
    for (const char* name : {"gpipe", "1f1b", "zb-h1", "zb-h2"}) all.push_back({name, p, 1});
    for (const int v : {2, 3}) all.push_back({"interleaved-1f1b", p, v});
    all.push_back({"zb-v", p, 2});
    all.push_back({"v-half", p, 2});
  }
  return all;
}

// One block a stage.
PipelineLoad even(const Shape& s) {
  const auto stages = static_cast<std::size_t>(s.ranks * s.chunks);
  const std::vector<int> kinds(stages, 0);
  const std::vector<std::int64_t> cut(stages, 1);
  return PipelineLoad(s.schedule, s.ranks, s.chunks, kinds, cut);
}

TEST(PipelineLoad, KeepsWhatTheRowsKeep) {
  for (const Shape& s : shapes()) {
    const PipelineLoad pipeline = even(s);
    for (const int m : {s.ranks, s.ranks + 1, 2 * s.ranks, 3 * s.ranks + 1, 5 * s.ranks}) {
      const std::vector<double> peaks = peak_stash(pipeline.rows(m));
      for (int rank = 0; rank < s.ranks; ++rank) {
        const double kept = pipeline.in_flight(rank, m) * s.chunks;
        const double rows = peaks[static_cast<std::size_t>(rank)];
        SCOPED_TRACE(::testing::Message() << s.schedule << " p" << s.ranks << " v" << s.chunks
                                          << " m" << m << " rank " << rank);
        EXPECT_GE(kept, rows - 1e-9);
        // Bounds from above; those of zero bubbles are reached by long steps alone.
        if (!s.schedule.starts_with("zb-") || m >= 3 * s.ranks) {
          EXPECT_LE(kept, rows + 1 + 1e-9);
        }
      }
    }
  }
}

TEST(PipelineLoad, WaitsAsLongAsTheRows) {
  std::mt19937 engine(7);
  std::uniform_real_distribution<double> share(0.3, 1.0);
  for (const Shape& s : shapes()) {
    if (s.schedule == "zb-v" || s.schedule == "v-half") continue;  // estimates between extremes
    const PipelineLoad pipeline = even(s);
    for (int n = 0; n < 10; ++n) {
      const double f = 1, w = f * share(engine), i = w + share(engine);
      const int m = s.ranks * (3 + n % 3);
      const RankTimes times{f, i, w, 0};
      const Schedule rows = pipeline.rows(m);
      const double wait = simulate(rows, even_durations(rows, times)).makespan - m * (f + i + w);
      EXPECT_NEAR(pipeline.bubble(m, times), wait, 0.05 * m * (f + i + w))
          << s.schedule << " p" << s.ranks << " v" << s.chunks << " m" << m << " F" << f << " I"
          << i << " W" << w;
    }
  }
}

TEST(PipelineLoad, LongStepsFold) {
  EXPECT_EQ(folded(3, 4), 3);
  EXPECT_EQ(folded(16, 4), 16);
  EXPECT_EQ(folded(17, 4), 13);
  EXPECT_EQ(folded(1'000'002, 4), 14);
}

Job job() {
  Job job;
  job.model = catalog_model("llama-3.1-8b").spec;
  job.cluster = cluster("h100-sxm-80gb");
  job.gpus = 4;
  job.seq = 4096;
  job.global_batch = 64;
  return job;
}

// A step is timed in full or folded, by uneven stages too.
TEST(PipelineLoad, FoldedStepsTakeAsLongAsWholeOnes) {
  Job whole = job();
  for (const Shape& s : shapes()) {
    if (s.ranks != 4) continue;
    Geometry g;
    g.pp = s.ranks;
    g.chunks = s.chunks;
    g.schedule = s.schedule;
    const int longest = 4 * g.pp;
    // What folding adds for each further round is what a whole round of p micro-batches takes.
    const auto step = [&](int m) {
      g.microbatches = m;
      Estimator estimator(whole);
      const StepParts parts = estimator.clocked(g).estimate.parts;
      return parts.compute + parts.bubble + parts.exposed_pp;
    };
    const double round = step(longest) - step(longest - g.pp);
    EXPECT_NEAR(step(longest + g.pp) - step(longest), round, 1e-6 * round) << s.schedule;
    EXPECT_NEAR(step(longest + 10 * g.pp) - step(longest), 10 * round, 1e-6 * 10 * round)
        << s.schedule;
  }
}

TEST(PipelineLoad, case_161_TheWorstStageCounts) {
  Job uneven = job();
  uneven.model.layers = 8;
  Geometry g;
  g.pp = 4;
  g.microbatches = 64;
  Estimator estimator(uneven);
  const std::vector<std::int64_t> even{2, 2, 2, 2}, worse{1, 2, 2, 3};
  const Estimate a = estimator.clocked(g, even).estimate, b = estimator.clocked(g, worse).estimate;
  // The last rank has three blocks and the head: it sets the pace.
  EXPECT_GT(b.parts.compute, 1.2 * a.parts.compute);
  EXPECT_GT(b.step, a.step);
  // The first rank keeps four micro-batches of one block and the table, the last one of three.
  const Estimate front = estimator.clocked(g, std::vector<std::int64_t>{5, 1, 1, 1}).estimate;
  EXPECT_EQ(front.memory.rank, 0);
  EXPECT_GT(front.memory.activations, 2 * a.memory.activations);
}

}  // namespace
}  // namespace quatrain
