// SPDX-License-Identifier: Apache-2.0
// Counted bytes: by hand, and equal to what conversion() predicts for the same layout change.
#include "quatrain/comm/counting.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "quatrain/base/error.h"
#include "quatrain/comm/self/self.h"
#include "quatrain/mesh/random_mesh.h"

namespace quatrain {
namespace {

using Rows = std::vector<std::int64_t>;
using Shape = std::vector<std::int64_t>;

// One rank of many that moves nothing: what is counted does not depend on the backend.
class Mute final : public Communicator {
 public:
  Mute(int rank, int size, std::string_view name) : rank_(rank), ranks_(size), name_(name) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }
  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(ranks_.size()); }
  std::string_view backend() const override { return "mute"; }
  std::string_view name() const override { return name_; }
  std::span<const int> ranks() const override { return ranks_; }
  Work all_reduce(at::Tensor, ReduceOp) override { return {}; }
  Work all_gather(at::Tensor, const at::Tensor&, std::span<const std::int64_t>) override {
    return {};
  }
  Work reduce_scatter(at::Tensor, const at::Tensor&, std::span<const std::int64_t>,
                      ReduceOp) override {
    return {};
  }
  Work all_to_all(at::Tensor, const at::Tensor&, std::span<const std::int64_t>,
                  std::span<const std::int64_t>) override {
    return {};
  }
  Work broadcast(at::Tensor, int) override { return {}; }
  Work send(const at::Tensor&, int) override { return {}; }
  Work recv(at::Tensor, int) override { return {}; }
  Work barrier() override { return {}; }
  std::unique_ptr<Communicator> group(std::span<const int> ranks, std::string_view name) override {
    return std::make_unique<Mute>(rank_, static_cast<int>(ranks.size()), name);
  }

 private:
  int rank_;
  std::vector<int> ranks_;
  std::string name_;
};

std::unique_ptr<Communicator> mute(int rank, int size, CommCounts& counts) {
  return make_counting(std::make_unique<Mute>(rank, size, "dp"), counts);
}

TEST(Counting, RingConventionByHand) {
  CommCounts counts;
  const auto dp = mute(1, 4, counts);
  const Rows even = {2, 2, 2, 2};
  const Rows uneven = {0, 3, 1, 0};
  dp->all_reduce(at::zeros({8, 16}), ReduceOp::kSum).wait();
  dp->all_gather(at::zeros({8, 5}), at::zeros({2, 5}), even).wait();
  dp->reduce_scatter(at::zeros({2, 5}), at::zeros({8, 5}), even, ReduceOp::kSum).wait();
  dp->all_to_all(at::zeros({4, 5}), at::zeros({4, 5}), uneven, uneven).wait();
  dp->broadcast(at::zeros({10}), 2).wait();
  dp->send(at::zeros({7}, at::kBFloat16), 0).wait();
  dp->recv(at::zeros({7}), 0).wait();
  dp->barrier().wait();
  const auto is = [&](Operation operation, std::int64_t bytes) {
    EXPECT_EQ(counts.of("dp", operation), (CommCount{1, Bytes{bytes}})) << name(operation);
  };
  is(Operation::kAllReduce, 2 * 3 * 512 / 4);
  is(Operation::kAllGather, 3 * 2 * 5 * 4);
  is(Operation::kReduceScatter, 3 * 2 * 5 * 4);
  is(Operation::kAllToAll, (4 - 3) * 5 * 4);  // rank 1 keeps its three rows
  is(Operation::kBroadcast, 3 * 3 * 4);       // ceil(10 / 4) elements
  is(Operation::kSend, 14);
  is(Operation::kRecv, 0);
  is(Operation::kBarrier, 0);
  EXPECT_EQ(counts.total("dp").calls, 8);
  EXPECT_EQ(counts.total(), counts.total("dp"));
}

TEST(Counting, PiecesArePaddedToTheLargest) {
  CommCounts counts;
  const auto dp = mute(0, 3, counts);
  const Rows rows = {1, 4, 0};
  dp->all_gather(at::zeros({5, 2}), at::zeros({1, 2}), rows).wait();
  EXPECT_EQ(counts.of("dp", Operation::kAllGather).bytes, Bytes{2 * 4 * 2 * 4});
  dp->reduce_scatter(at::zeros({1, 2}), at::zeros({5, 2}), rows, ReduceOp::kSum).wait();
  EXPECT_EQ(counts.of("dp", Operation::kReduceScatter).bytes, Bytes{2 * 4 * 2 * 4});
  dp->all_reduce(at::zeros({1}), ReduceOp::kSum).wait();  // ceil(1 / 3) is one element
  EXPECT_EQ(counts.of("dp", Operation::kAllReduce).bytes, Bytes{2 * 2 * 4});
}

TEST(Counting, NothingIsSentWhereNothingIs) {
  CommCounts counts;
  const auto dp = mute(0, 3, counts);
  const Rows none = {0, 0, 0};
  dp->all_reduce(at::zeros({0}), ReduceOp::kSum).wait();
  dp->broadcast(at::zeros({0, 4}), 0).wait();
  dp->all_gather(at::zeros({0, 4}), at::zeros({0, 4}), none).wait();
  dp->all_to_all(at::zeros({0, 4}), at::zeros({0, 4}), none, none).wait();
  EXPECT_EQ(counts.total(), (CommCount{4, Bytes{0}}));
}

TEST(Counting, OneRankSendsNothing) {
  CommCounts counts;
  const auto world = make_counting(make_self_communicator(), counts);
  world->all_reduce(at::zeros({8}), ReduceOp::kSum).wait();
  all_gather(*world, at::zeros({8}), at::zeros({8})).wait();
  EXPECT_EQ(counts.total(), (CommCount{2, Bytes{0}}));
}

TEST(Counting, GroupsAreCountedByName) {
  CommCounts counts;
  const auto world = make_counting(make_self_communicator(), counts);
  const std::vector<int> alone = {0};
  const auto tp = world->group(alone, "tp");
  const auto again = tp->group(alone, "tp");
  tp->barrier().wait();
  again->barrier().wait();
  world->barrier().wait();
  EXPECT_EQ(counts.total("tp").calls, 2);
  EXPECT_EQ(counts.total("world").calls, 1);
  EXPECT_EQ(counts.total("dp"), CommCount());
  EXPECT_EQ(counts.to_string(), "tp barrier: 2 calls, 0 B\nworld barrier: 1 calls, 0 B\n");
}

TEST(Counting, SnapshotsDifferencesAndReset) {
  CommCounts counts;
  const auto dp = mute(0, 2, counts);
  dp->all_reduce(at::zeros({4}), ReduceOp::kSum).wait();
  const CommCounts before = counts;
  dp->all_reduce(at::zeros({6}), ReduceOp::kSum).wait();
  EXPECT_EQ(counts.since(before).total(), (CommCount{1, Bytes{2 * 3 * 4}}));
  EXPECT_EQ(before.total("dp").calls, 1);
  EXPECT_FALSE(counts == before);
  counts.reset();
  EXPECT_EQ(counts, CommCounts());
  dp->barrier().wait();  // still writes into the same books
  EXPECT_EQ(counts.total("dp").calls, 1);
}

TEST(Counting, ARefusedCallIsNotCounted) {
  CommCounts counts;
  const auto world = make_counting(make_self_communicator(), counts);
  EXPECT_THROW(all_gather(*world, at::zeros({2}), at::zeros({3})).wait(), BugError);
  EXPECT_THROW(world->all_reduce(at::Tensor(), ReduceOp::kSum).wait(), BugError);
  EXPECT_EQ(counts, CommCounts());
}

// ---- conversion() predicts, the communicator counts.

Placement random_placement(RandomMeshes& random, int degree) {
  const int kind = random.below(4);
  if (kind == 0) return Replicate{};
  if (kind == 1) return Partial{};
  Shard shard{.dim = random.below(2), .grain = 1 + random.below(2)};
  if (random.below(4) == 0) shard.layout = Layout::kZigzag;
  if (random.below(4) == 0 && degree % 2 == 0) shard.repeat = 2;
  return shard;
}

// The shape of a tensor whose `dim` lies first, as rows.
Shape with_first(const Shape& shape, int dim, std::int64_t rows) {
  Shape result = {rows};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (static_cast<int>(d) != dim) result.push_back(shape[d]);
  }
  return result;
}

// Runs the only step of a conversion on the rank of `mesh`: what it sends.
Bytes run_step(const Collective& step, const ShardSpec& from, const ShardSpec& to,
               const Shape& global, const Mesh& mesh, at::ScalarType dtype) {
  const std::vector<int> members = mesh.group(step.axes);
  const auto local = [&](const ShardSpec& spec, int rank) {
    return spec.local_shape(global, mesh.with_rank(rank));
  };
  const auto rows = [&](const ShardSpec& spec, int dim) {
    Rows result;
    for (int m : members) result.push_back(local(spec, m)[static_cast<std::size_t>(dim)]);
    return result;
  };
  const auto tensor = [&](const Shape& shape) {
    return at::empty(shape, at::TensorOptions().dtype(dtype));
  };
  CommCounts counts;
  const auto comm = mute(mesh.coord(step.axes), static_cast<int>(members.size()), counts);
  const Shape before = local(from, mesh.rank());
  const Shape after = local(to, mesh.rank());
  const int dim = step.tensor_dim;
  const auto first = [&](const Shape& shape) {
    return tensor(with_first(shape, dim, shape[static_cast<std::size_t>(dim)]));
  };
  switch (step.kind) {
    case CollectiveKind::kAllReduce:
      comm->all_reduce(tensor(before), step.op).wait();
      break;
    case CollectiveKind::kAllGather: {
      const Rows pieces = rows(from, dim);
      const auto sum = std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0});
      comm->all_gather(tensor(with_first(after, dim, sum)), first(before), pieces).wait();
      break;
    }
    case CollectiveKind::kReduceScatter:
      comm->reduce_scatter(first(after), first(before), rows(to, dim), step.op).wait();
      break;
    case CollectiveKind::kAllToAll: {  // rows are places along the dim that is cut
      const int cut = step.split_dim;
      const Rows leaving = rows(to, cut);
      const Rows kept(members.size(), after[static_cast<std::size_t>(cut)]);
      const at::Tensor in = tensor(with_first(before, cut, before[static_cast<std::size_t>(cut)]));
      comm->all_to_all(in, in, kept, leaving).wait();
      break;
    }
    case CollectiveKind::kSend:
    case CollectiveKind::kSlice:
      break;
  }
  return counts.total().bytes;
}

TEST(CountingProperty, AgreesWithConversion) {
  RandomMeshes random(17);
  std::map<CollectiveKind, int> kinds;
  for (int n = 0; n < 6000; ++n) {
    const Mesh mesh = random.mesh(12);
    const AxisSet axes = random.coin() ? AxisSet(Axis::kTp) : AxisSet{Axis::kDpShard, Axis::kCp};
    const Shape shape = {1 + random.below(9), 1 + random.below(9)};
    const ShardSpec from = {{{axes, random_placement(random, mesh.degree(axes))}}};
    const ShardSpec to = {{{axes, random_placement(random, mesh.degree(axes))}}};
    if (!std::holds_alternative<Partial>(from.on[0].placement) &&
        std::holds_alternative<Partial>(to.on[0].placement)) {
      continue;  // nothing converts into a sum
    }
    const at::ScalarType dtype = random.coin() ? at::kFloat : at::kBFloat16;
    const Bytes element{dtype == at::kFloat ? 4 : 2};
    const auto list = conversion(from, to, shape, element, mesh);
    if (list.size() != 1) continue;
    ++kinds[list[0].kind];
    Bytes most{0};
    for (int rank : mesh.group(axes)) {
      most = std::max(most, run_step(list[0], from, to, shape, mesh.with_rank(rank), dtype));
    }
    ASSERT_EQ(most, list[0].bytes_sent) << to_string(list[0]) << " of " << to_string(from) << " to "
                                        << to_string(to) << " on " << mesh.to_string();
  }
  EXPECT_EQ(kinds.size(), 5U);
  for (const auto& [kind, count] : kinds) EXPECT_GT(count, 50);
}

}  // namespace
}  // namespace quatrain
