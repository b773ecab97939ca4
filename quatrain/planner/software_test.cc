// SPDX-License-Identifier: Apache-2.0
// What other software does otherwise, key by key of a cluster's file.
#include <gtest/gtest.h>

#include <vector>

#include "quatrain/planner/estimate.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace {

struct Block {
  Job job;
  Geometry geometry;

  Block() {
    job.model = catalog_model("gpt2-xl").spec;
    job.cluster = cluster("a100-sxm-80gb");
    job.seq = 1024;
    job.global_batch = geometry.micro_batch = 2;
  }
  LayerTimes with(double ClusterSpec::*key, double value, Recompute recompute) const {
    Job other = job;
    other.cluster.*key = value;
    Geometry g = geometry;
    g.recompute = recompute;
    return LayerTable(other).at(g).block[0];
  }
};

constexpr Recompute kAll[] = {Recompute::kNone, Recompute::kSelective, Recompute::kFull};

TEST(Software, FullRecomputationMayMakeWholeBlocksAgain) {
  const Block block;
  for (const Recompute recompute : kAll) {
    const LayerTimes own = block.with(&ClusterSpec::whole_again, 0, recompute);
    const LayerTimes other = block.with(&ClusterSpec::whole_again, 1, recompute);
    const bool full = recompute == Recompute::kFull;
    EXPECT_NEAR(other.total() - own.total(), full ? own.last_product : 0.0, 1e-12);
  }
  // Of gpt2's 12 h^2 weights a block, down has 4.
  const LayerTimes own = block.with(&ClusterSpec::whole_again, 0, Recompute::kFull);
  EXPECT_NEAR(own.last_product / own.products, 1.0 / 3, 0.02);
}

TEST(Software, SelectiveRecomputationMayRemakeProducts) {
  const Block block;
  for (const Recompute recompute : kAll) {
    const LayerTimes own = block.with(&ClusterSpec::remade, 0, recompute);
    const LayerTimes other = block.with(&ClusterSpec::remade, 0.5, recompute);
    const bool selective = recompute == Recompute::kSelective;
    EXPECT_NEAR(other.total() - own.total(), selective ? 0.5 * own.products : 0.0, 1e-12);
  }
}

// Korthikanti et al. (arXiv:2205.05198), 4.1: 5 a s^2 b bytes of scores; selective recomputation
// keeps none and makes them again.
TEST(Software, ScoresInMemoryAreKeptOrMadeAgain) {
  const Block block;
  const double scores = static_cast<double>(block.job.model.heads) * 1024 * 1024 * 2;
  for (const Recompute recompute : kAll) {
    const LayerTimes own = block.with(&ClusterSpec::score_bytes, 0, recompute);
    const LayerTimes other = block.with(&ClusterSpec::score_bytes, 13, recompute);
    const bool kept = recompute == Recompute::kNone;
    EXPECT_DOUBLE_EQ(other.stash - own.stash, kept ? 5 * scores : 0.0);
    EXPECT_DOUBLE_EQ(other.working - own.working, 5 * scores);
    EXPECT_GT(other.forward, own.forward);
  }
  const auto backward = [&](Recompute recompute) {
    return block.with(&ClusterSpec::score_bytes, 13, recompute).input -
           block.with(&ClusterSpec::score_bytes, 0, recompute).input;
  };
  EXPECT_GT(backward(Recompute::kSelective), 1.2 * backward(Recompute::kNone));
}

TEST(Software, ElementwiseKernelsMayMoveMore) {
  const Block block;
  for (const Recompute recompute : kAll) {
    const LayerTimes own = block.with(&ClusterSpec::pass_factor, 1, recompute);
    const LayerTimes other = block.with(&ClusterSpec::pass_factor, 1.5, recompute);
    EXPECT_GT(other.forward, own.forward);
    EXPECT_GT(other.input, own.input);
    EXPECT_EQ(other.weight, own.weight);
    EXPECT_EQ(other.stash, own.stash);
  }
}

}  // namespace
}  // namespace quatrain
