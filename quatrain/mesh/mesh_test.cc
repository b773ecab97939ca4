// SPDX-License-Identifier: Apache-2.0
// Known meshes by hand, then properties over 10^4 random ones.
#include "quatrain/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/base/error.h"
#include "quatrain/mesh/random_mesh.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::vector<Axis> kDefaultOrder = {Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kCp,
                                         Axis::kTp};

TEST(Mesh, OneRankAlone) {
  const Mesh mesh;
  EXPECT_EQ(mesh.world_size(), 1);
  EXPECT_EQ(mesh.rank(), 0);
  EXPECT_THAT(mesh.group({Axis::kDpShard, Axis::kCp}), ElementsAre(0));
  EXPECT_EQ(mesh, Mesh({1, 1, 1, 1, 1, 1, 1, 1, 1}, 0));
}

TEST(Mesh, DefaultOrderPutsTpNext) {
  const Mesh mesh({2, 1, 2, 1, 2, 1, 4, 1, 1}, 5);  // pp 1, dp_shard 0, tp 1
  EXPECT_EQ(mesh.world_size(), 8);
  EXPECT_EQ(mesh.coord(Axis::kPp), 1);
  EXPECT_EQ(mesh.coord(Axis::kDpShard), 0);
  EXPECT_EQ(mesh.coord(Axis::kTp), 1);
  EXPECT_THAT(mesh.group(Axis::kTp), ElementsAre(4, 5));
  EXPECT_THAT(mesh.group(Axis::kDpShard), ElementsAre(5, 7));
  EXPECT_THAT(mesh.group(Axis::kPp), ElementsAre(1, 5));
  EXPECT_THAT(mesh.group({Axis::kTp, Axis::kDpShard}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(mesh.group(AxisSet{}), ElementsAre(5));
}

// As long as a group's degree is no larger than a node and divides it.
TEST(Mesh, TensorAndExpertGroupsStayInANode) {
  constexpr int kNode = 8, kRanks = 64;
  const auto stays = [](const Mesh& mesh, AxisSet axes) {
    for (int rank = 0; rank < kRanks; ++rank) {
      for (const int member : mesh.with_rank(rank).group(axes)) {
        if (member / kNode != rank / kNode) return false;
      }
    }
    return true;
  };
  for (const int degree : {1, 2, 4, 8}) {
    const int data = kRanks / (2 * degree);
    const Mesh mesh({2, 1, data, 1, degree, 1, data, degree, 1}, 0);
    EXPECT_TRUE(stays(mesh, Axis::kTp)) << degree;
    EXPECT_TRUE(stays(mesh, Axis::kEp)) << degree;
  }
  EXPECT_FALSE(stays(Mesh({2, 1, 2, 1, 16, 1, 2, 16, 1}, 0), Axis::kTp));
}

TEST(Mesh, OrderIsPartOfThePlan) {
  const Mesh mesh({2, 1, 2, 1, 2, 1, 4, 1, 1},
                  {Axis::kTp, Axis::kCp, Axis::kDpShard, Axis::kDpReplicate, Axis::kPp}, 5);
  EXPECT_THAT(mesh.group(Axis::kPp), ElementsAre(4, 5));
  EXPECT_THAT(mesh.group(Axis::kTp), ElementsAre(1, 5));
}

TEST(Mesh, ExpertViewFoldsTheStage) {
  // 8 ranks a stage: dp_shard 4 x tp 2 as edp 2 x ep 4.
  const Mesh mesh({2, 1, 4, 1, 2, 1, 2, 4, 1}, 13);
  EXPECT_THAT(mesh.group(Axis::kEp), ElementsAre(12, 13, 14, 15));
  EXPECT_THAT(mesh.group(Axis::kEdpShard), ElementsAre(9, 13));
  EXPECT_EQ(mesh.coord({Axis::kEp, Axis::kEdpShard}), 5);
  EXPECT_EQ(mesh.degree({Axis::kEp, Axis::kEdpShard}), 8);
  EXPECT_EQ(mesh.to_string(), "pp2 dp_replicate1 dp_shard4 cp1 tp2 | edp2 ep4 etp1 @ rank 13");
}

TEST(Mesh, DenseJobFillsTheExpertView) {
  const Mesh mesh({1, 2, 3, 2, 2, 1, 1, 1, 1}, 0);
  EXPECT_EQ(mesh.degree(Axis::kEdpReplicate), 2);
  EXPECT_EQ(mesh.degree(Axis::kEdpShard), 12);
  EXPECT_EQ(mesh.to_string(),
            "pp1 dp_replicate2 dp_shard3 cp2 tp2 | edp_replicate2 edp_shard12 ep1 etp1 @ rank 0");
}

TEST(Mesh, BrokenRulesAreNamedTogether) {
  EXPECT_THAT(
      [] {
        Mesh({0, 1, 4, 1, 2, 1, 2, 2, 1}, kDefaultOrder, -1);
      },
      ThrowsMessage<ConfigError>(AllOf(HasSubstr("pp = 0 is not a degree"),
                                       HasSubstr("etp = 4 but"), HasSubstr("tp = 8"),
                                       HasSubstr("rank -1 is not in a job of 8 ranks"))));
  EXPECT_THAT(
      [] {
        Mesh({1, 1, 2, 1, 1, 1, 1, 1, 1}, 2);
      },
      ThrowsMessage<ConfigError>(HasSubstr("ranks are 0 to 1")));
  EXPECT_THAT(
      [] {
        Mesh({1, 1, 1, 1, 1, 1, 1, 1, 1}, {Axis::kTp, Axis::kPp}, 0);
      },
      ThrowsMessage<ConfigError>(HasSubstr("the order is \"tp pp\"")));
  EXPECT_THAT(
      [] {
        Mesh({9999, 9999, 9999, 9999, 1, 1, 1, 1, 1}, 0);
      },
      ThrowsMessage<ConfigError>(HasSubstr("more than 2^31 ranks")));
}

TEST(Mesh, AxesOfTwoViewsDoNotMix) {
  const Mesh mesh;
  EXPECT_THROW((void)mesh.group({Axis::kTp, Axis::kEp}), BugError);
  EXPECT_NO_THROW((void)mesh.group({Axis::kPp, Axis::kEp}));
}

TEST(Mesh, SixteenThousandRanks) {
  const Mesh mesh({16, 2, 64, 1, 8, 2, 8, 64, 1}, 12345);
  EXPECT_EQ(mesh.world_size(), 16384);
  EXPECT_EQ(mesh.group({Axis::kDpShard, Axis::kCp}).size(), 64U);
  EXPECT_EQ(mesh.group(Axis::kEp).size(), 64U);
}

TEST(AxisSet, IsASet) {
  constexpr AxisSet set{Axis::kDpShard, Axis::kCp};
  static_assert(set.contains(Axis::kCp) && !set.contains(Axis::kTp));
  static_assert((set - Axis::kCp) == AxisSet(Axis::kDpShard));
  static_assert((set - set).empty());
  EXPECT_EQ(to_string(set), "dp_shard x cp");
  EXPECT_EQ(to_string(AxisSet{}), "no axis");
}

TEST(MeshProperty, GroupsPartitionTheRanks) {
  RandomMeshes random(1);
  for (int n = 0; n < 10000; ++n) {
    const Mesh mesh = random.mesh(24);
    const AxisSet axes = random.axes(random.coin());
    std::vector<int> seen(static_cast<std::size_t>(mesh.world_size()), 0);
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      if (seen[static_cast<std::size_t>(rank)] != 0) continue;
      const std::vector<int> group = mesh.with_rank(rank).group(axes);
      ASSERT_EQ(static_cast<int>(group.size()), mesh.degree(axes)) << mesh.to_string();
      for (int member : group) ++seen[static_cast<std::size_t>(member)];
    }
    ASSERT_THAT(seen, ::testing::Each(1)) << mesh.to_string() << " over " << to_string(axes);
  }
}

TEST(MeshProperty, MembersAgreeOnTheirGroup) {
  RandomMeshes random(2);
  for (int n = 0; n < 10000; ++n) {
    const Mesh mesh = random.mesh(24);
    const AxisSet axes = random.axes(random.coin());
    const std::vector<int> group = mesh.group(axes);
    const auto place = static_cast<std::size_t>(mesh.coord(axes));
    ASSERT_LT(place, group.size());
    ASSERT_EQ(group[place], mesh.rank()) << mesh.to_string() << " over " << to_string(axes);
    const int other = group[static_cast<std::size_t>(random.below(static_cast<int>(group.size())))];
    ASSERT_EQ(mesh.with_rank(other).group(axes), group);
  }
}

TEST(MeshProperty, CoordinatesNameTheRank) {
  RandomMeshes random(3);
  constexpr AxisSet kDense{Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp};
  constexpr AxisSet kExpert{Axis::kEdpReplicate, Axis::kEdpShard, Axis::kEp, Axis::kEtp};
  for (int n = 0; n < 10000; ++n) {
    const Mesh mesh = random.mesh(24);
    ASSERT_EQ(mesh.coord(kDense), mesh.rank()) << mesh.to_string();
    ASSERT_EQ(mesh.degree(kDense - Axis::kPp), mesh.degree(kExpert)) << mesh.to_string();
    // Both views count the ranks of a stage in the same order.
    ASSERT_EQ(mesh.coord(kDense - Axis::kPp), mesh.coord(kExpert)) << mesh.to_string();
    int rank = 0;
    for (Axis axis : mesh.order()) rank = rank * mesh.degree(axis) + mesh.coord(axis);
    ASSERT_EQ(rank, mesh.rank());
  }
}

}  // namespace
}  // namespace quatrain
