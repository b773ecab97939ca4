// SPDX-License-Identifier: Apache-2.0
// Collectives against volumes counted by hand, and the answers that follow from them: up to how
// many ranks a gated MLP (three matrices D x F, B tokens, 16 bit) is bound by computing.
#include "quatrain/planner/collective.h"

#include <gtest/gtest.h>

namespace quatrain {
namespace {

// 8 ranks a domain; 100 bytes/s inside, 10 outside; no latency.
ClusterSpec plain() {
  ClusterSpec c;
  c.domain = 8;
  c.domain_bandwidth = 100;
  c.network_bandwidth = 10;
  return c;
}

TEST(Collective, RingVolumes) {
  const ClusterSpec c = plain();
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kAllGather, {4, 1}, 1000), 7.5);
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kReduceScatter, {4, 1}, 1000), 7.5);
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kAllReduce, {4, 1}, 1000), 15.0);
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kAllToAll, {4, 1}, 1000), 7.5);
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kSend, {2, 1}, 1000), 10.0);
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kSend, {2, 8}, 1000), 100.0);
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kAllReduce, {1, 1}, 1000), 0.0);
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kAllReduce, {4, 1}, 0), 0.0);
}

TEST(Collective, RanksOfADomainShareWhatCrossesTheNetwork) {
  EXPECT_DOUBLE_EQ(collective_seconds(plain(), CommKind::kAllGather, {16, 1}, 1000),
                   7.0 / 8 * 10 + 0.5 * 12.5);
  // One rank a domain: all of it crosses.
  EXPECT_DOUBLE_EQ(collective_seconds(plain(), CommKind::kAllGather, {2, 8}, 1000), 50.0);
  EXPECT_DOUBLE_EQ(collective_seconds(plain(), CommKind::kAllToAll, {16, 1}, 1000),
                   7.0 / 8 * 10 + 0.5 * 100);
}

TEST(Collective, LatencyIsThatOfATree) {
  ClusterSpec c = plain();
  c.domain_latency = 1;
  c.network_latency = 100;
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kAllGather, {8, 1}, 1e-9), 3 + 8.75e-12);
  EXPECT_NEAR(collective_seconds(c, CommKind::kAllGather, {32, 1}, 1e-9), 3 + 200, 1e-9);
}

TEST(Collective, SwitchesReduceOnTheWay) {
  ClusterSpec c = plain();
  c.all_reduce_gain = 1.5;
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kAllReduce, {4, 1}, 1000), 10.0);
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kAllGather, {4, 1}, 1000), 7.5);
}

// MI300X: 47.7 GB/s among two, 312.9 among eight; a pair has one link of seven.
TEST(Collective, InAMeshAPairHasOneLink) {
  ClusterSpec c = plain();
  c.topology = Topology::kMesh;
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kSend, {2, 1}, 100), 7.0);
  EXPECT_DOUBLE_EQ(collective_seconds(c, CommKind::kAllGather, {8, 1}, 1000), 8.75);
}

TEST(Collective, InATorusAGroupUsesTheAxesThatItSpans) {
  ClusterSpec c = plain();
  c.topology = Topology::kTorus;
  c.torus_axes = 3;
  c.domain = 4096;
  const auto rate = [&](GroupShape group) {
    const double n = group.size;
    return (n - 1) / n * 1000 / collective_seconds(c, CommKind::kAllGather, group, 1000);
  };
  EXPECT_DOUBLE_EQ(rate({16, 1}), 100);
  EXPECT_DOUBLE_EQ(rate({256, 1}), 200);
  EXPECT_DOUBLE_EQ(rate({4096, 1}), 300);
  EXPECT_DOUBLE_EQ(rate({256, 16}), 200);
  EXPECT_DOUBLE_EQ(rate({16, 256}), 100);
}

TEST(Collective, BandwidthFallsWithDomains) {
  ClusterSpec c = plain();
  c.network_decay = 0.5;
  const auto outside = [&](int domains) {
    const double n = domains;
    return (n - 1) / n * 1000 / collective_seconds(c, CommKind::kAllGather, {domains, 8}, 1000);
  };
  EXPECT_DOUBLE_EQ(outside(2), 10);
  EXPECT_DOUBLE_EQ(outside(4), 10 / 1.5);
  EXPECT_DOUBLE_EQ(outside(16), 10 / 2.5);
}

// A flat network of W bytes/s, accelerators of C FLOP/s.
struct Mlp {
  double B = 4096, D = 1024, F = 8192, C = 1000, W = 50;
  ClusterSpec cluster() const {
    ClusterSpec c = plain();
    c.domain = 1e6;
    c.domain_bandwidth = W;
    return c;
  }
  double time(CommKind kind, int ranks, double bytes) const {
    return collective_seconds(cluster(), kind, {ranks, 1}, bytes);
  }
};

TEST(Collective, DataParallelMlpIsBoundByComputingUpToBWOverC) {
  const Mlp m;
  const double bound = 1 + m.B * m.W / m.C;
  for (const int n : {2, 50, 100, 200, 205, 206, 300}) {
    // Backward: 12 B D F FLOPs over n ranks; gradients of 3 D F in 16 bit.
    const double computing = 12 * m.B * m.D * m.F / n / m.C;
    const double all_reduce = m.time(CommKind::kAllReduce, n, 2 * 3 * m.D * m.F);
    EXPECT_EQ(computing >= all_reduce, n <= bound) << n;
    // Fully sharded: forward gathers, backward gathers and reduces.
    const double gather = m.time(CommKind::kAllGather, n, 2 * 3 * m.D * m.F);
    EXPECT_EQ(computing / 2 >= gather, n <= bound) << n;
    EXPECT_EQ(computing >= 2 * gather, n <= bound) << n;
  }
}

TEST(Collective, TensorParallelMlpIsBoundByComputingUpToFWOverC) {
  const Mlp m;
  const double forward = 1 + 1.5 * m.F * m.W / m.C, backward = 1 + 3 * m.F * m.W / m.C;
  for (const int n : {2, 100, 600, 615, 616, 1000, 1229, 1230, 2000}) {
    const double computing = 6 * m.B * m.D * m.F / n / m.C;
    // One sum of B D activations each way.
    const double sum = m.time(CommKind::kAllReduce, n, 2 * m.B * m.D);
    EXPECT_EQ(computing >= sum, n <= forward) << n;
    EXPECT_EQ(2 * computing >= sum, n <= backward) << n;
  }
}

}  // namespace
}  // namespace quatrain
