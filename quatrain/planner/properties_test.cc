// SPDX-License-Identifier: Apache-2.0
// What must hold of every model, cluster and geometry.
#include <gtest/gtest.h>

#include <cmath>

#include "quatrain/base/error.h"
#include "quatrain/planner/draw_test_support.h"
#include "quatrain/planner/explain.h"
#include "quatrain/planner/search.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

std::vector<double> numbers(const Estimate& e) {
  const StepParts& p = e.parts;
  const MemoryParts& m = e.memory;
  return {p.compute,    p.exposed_tp, p.exposed_cp,  p.exposed_ep, p.exposed_dp,
          p.exposed_pp, p.bubble,     p.optimizer,   p.other,      m.params,
          m.grads,      m.optimizer,  m.activations, m.logits,     m.buffers,
          m.overhead,   e.step,       e.model_flops, e.mfu};
}

TEST(Properties, AThousandRandomGeometriesHaveSoundNumbers) {
  for (const Drawn& d : drawn(1000, 1)) {
    Estimator estimator(d.job);
    const Estimate e = estimator.clocked(d.g).estimate;
    for (const double number : numbers(e)) {
      ASSERT_TRUE(std::isfinite(number)) << to_string(d.g) << " " << d.job.model.layers;
      ASSERT_GE(number, 0) << to_string(d.g);
    }
    EXPECT_DOUBLE_EQ(e.step, e.parts.sum());
    // No faster than its FLOPs at the peak, nor than its weights can be read.
    const double peak = d.job.cluster.peak(d.job.dtype) * d.job.gpus;
    EXPECT_GE(e.step * (1 + 1e-9), e.model_flops / peak) << to_string(d.g);
    if (d.g.zero == 0) {
      EXPECT_GE(e.step, e.memory.params / d.job.cluster.memory_bandwidth) << to_string(d.g);
    }
  }
}

TEST(Properties, AThousandRandomJobsAreSearched) {
  Draw draw(2);
  int found = 0;
  for (int n = 0; n < 1000; ++n) {
    Job job = draw.job();
    job.gpus = std::min(job.gpus, 16);
    SearchRequest request;
    request.top = 1;
    request.fixed.schedule = "1f1b";
    request.fixed.micro_batch = 1;
    request.fixed.recompute = draw.one_of({Recompute::kNone, Recompute::kFull});
    const SearchResult result = search(job, request);
    for (const RankedPlan& plan : result.plans) {
      ++found;
      EXPECT_TRUE(plan.estimate.fits);
      EXPECT_EQ(plan.geometry.world(), job.gpus);
      EXPECT_FALSE(why(job, plan).empty());
      for (const double number : numbers(plan.estimate)) ASSERT_TRUE(std::isfinite(number));
    }
    if (result.plans.empty()) {
      EXPECT_FALSE(why_nothing(job, result).empty());
    }
  }
  EXPECT_GT(found, 300);
}

// In draws of the second seed a better cluster makes another pipeline rank the slowest, which has
// more parameters to reduce and to update.
TEST(Properties, MoreOfAnythingIsNeverWorse) {
  for (const unsigned seed : {3U, 110U}) more_of_anything_is_never_worse(100, seed);
}

// By which the search leaves plans out before it clocks them.
TEST(Properties, TheClockIsNeverBelowTheLeastStep) {
  for (const Drawn& d : drawn(1000, 5)) {
    Estimator estimator(d.job);
    const double least = least_step(estimator.estimate(d.g));
    EXPECT_GE(estimator.clocked(d.g).estimate.step * (1 + 1e-9), least) << to_string(d.g);
  }
}

// Where all links are equal, it does not matter which axis rides which.
TEST(Properties, EqualLinksMakeAxesAlike) {
  Job job;
  job.model = catalog_model("llama-3.1-8b").spec;
  job.cluster = cluster("h100-sxm-80gb");
  job.cluster.domain = 1024;
  job.gpus = 16;
  job.seq = 4096;
  job.global_batch = 16;
  Geometry sharded, replicated;
  sharded.dp_shard = replicated.dp_replicate = 16;
  sharded.zero = replicated.zero = 0;
  const Estimate a = Estimator(job).estimate(sharded), b = Estimator(job).estimate(replicated);
  EXPECT_DOUBLE_EQ(a.step, b.step);
  EXPECT_DOUBLE_EQ(a.memory.sum(), b.memory.sum());
}

TEST(Properties, TheSameQuestionHasTheSameAnswer) {
  Draw draw(4);
  for (int n = 0; n < 20; ++n) {
    const Job job = draw.job();
    SearchRequest request;
    const SearchResult a = search(job, request), b = search(job, request);
    ASSERT_EQ(a.plans.size(), b.plans.size());
    for (std::size_t i = 0; i < a.plans.size(); ++i) {
      EXPECT_EQ(a.plans[i].geometry, b.plans[i].geometry);
    }
  }
}

}  // namespace
}  // namespace quatrain
