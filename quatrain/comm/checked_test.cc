// SPDX-License-Identifier: Apache-2.0
// What ranks say of each other when they do not agree.
#include "quatrain/comm/checked.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "quatrain/base/error.h"
#include "quatrain/comm/call_header.h"
#include "quatrain/comm/self/self.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::ThrowsMessage;
using Rows = std::vector<std::int64_t>;

// What ranks 0 and 2 of the world, alone in a group, say of their calls.
std::optional<std::string> compare(const Call& first, const Call& second) {
  std::vector<std::int64_t> headers = pack_header(first, 2);
  const auto other = pack_header(second, 2);
  headers.insert(headers.end(), other.begin(), other.end());
  const std::vector<int> ranks = {0, 2};
  return disagreement(headers, ranks);
}

Call all_reduce_of(at::Tensor x, ReduceOp op = ReduceOp::kSum) {
  return {
      .operation = Operation::kAllReduce, .out = std::move(x), .in = {}, .op = op, .sequence = 7};
}

Call all_gather_of(at::Tensor in, const Rows& rows) {
  return {.operation = Operation::kAllGather,
          .out = {},
          .in = std::move(in),
          .rows = rows,
          .sequence = 7};
}

Call all_to_all_of(at::Tensor in, const Rows& in_rows, const Rows& out_rows) {
  return {.operation = Operation::kAllToAll,
          .out = {},
          .in = std::move(in),
          .rows = in_rows,
          .out_rows = out_rows,
          .sequence = 7};
}

TEST(CallHeader, EqualCallsAgree) {
  EXPECT_EQ(compare(all_reduce_of(at::zeros({2, 3})), all_reduce_of(at::zeros({2, 3}))),
            std::nullopt);
  const Rows rows = {1, 3};  // each rank's own piece has its own rows
  EXPECT_EQ(compare(all_gather_of(at::zeros({1, 4}), rows), all_gather_of(at::zeros({3, 4}), rows)),
            std::nullopt);
}

TEST(CallHeader, EveryDifferenceIsNamed) {
  const Call mine = all_reduce_of(at::zeros({32}));
  const Rows even = {8, 8};
  const Rows other = {8, 9};
  EXPECT_THAT(compare(mine, all_gather_of(at::zeros({8, 4}), even)),
              Optional(std::string("rank 2 calls all_gather #7 Float[8, 4] rows {8, 8}, "
                                   "rank 0 calls all_reduce #7 Float[32] sum")));
  EXPECT_THAT(compare(mine, all_reduce_of(at::zeros({31}))), Optional(HasSubstr("Float[31]")));
  EXPECT_THAT(compare(mine, all_reduce_of(at::zeros({32}, at::kDouble))),
              Optional(HasSubstr("Double[32]")));
  EXPECT_THAT(compare(mine, all_reduce_of(at::zeros({32}), ReduceOp::kMax)),
              Optional(HasSubstr("Float[32] max")));
  EXPECT_THAT(compare(mine, all_reduce_of(at::zeros({4, 8}))), Optional(HasSubstr("[4, 8]")));
  Call later = mine;
  later.sequence = 8;
  EXPECT_THAT(compare(mine, later), Optional(HasSubstr("rank 2 calls all_reduce #8")));
  EXPECT_THAT(compare(all_gather_of(at::zeros({8}), even), all_gather_of(at::zeros({8}), other)),
              Optional(HasSubstr("rows {8, 9}")));
  EXPECT_THAT(compare(all_gather_of(at::zeros({8, 2}), even), all_gather_of(at::zeros({8}), even)),
              Optional(HasSubstr("Float[8, 2]")));
}

TEST(CallHeader, RootsOfABroadcast) {
  Call zero{.operation = Operation::kBroadcast, .out = at::zeros({3}), .in = {}, .peer = 0};
  Call one = zero;
  one.peer = 1;
  EXPECT_EQ(compare(zero, zero), std::nullopt);
  EXPECT_THAT(compare(zero, one), Optional(HasSubstr("broadcast #0 Float[3] root 1")));
}

TEST(CallHeader, AllToAllIsComparedByPair) {
  const Rows a_sends = {1, 2};
  const Rows b_sends = {5, 3};
  const Rows a_expects = {1, 5};
  const Rows b_expects = {2, 3};
  const at::Tensor a = at::zeros({3, 4});
  const at::Tensor b = at::zeros({8, 4});
  EXPECT_EQ(compare(all_to_all_of(a, a_sends, a_expects), all_to_all_of(b, b_sends, b_expects)),
            std::nullopt);
  EXPECT_THAT(compare(all_to_all_of(a, a_sends, a_expects), all_to_all_of(b, b_sends, b_sends)),
              Optional(std::string("rank 0 sends 2 rows to rank 2, which expects 5")));
}

TEST(Checked, MovesTheSameNumbers) {
  const auto world = make_checked(make_self_communicator());
  const at::Tensor x = at::arange(6, at::kFloat).reshape({3, 2});
  at::Tensor out = at::zeros({3, 2});
  all_gather(*world, out, x).wait();
  EXPECT_TRUE(out.equal(x));
  world->send(x, 0).wait();
  out.zero_();
  world->recv(out, 0).wait();
  EXPECT_TRUE(out.equal(x));
  world->barrier().wait();
  world->all_reduce(out, ReduceOp::kMax).wait();
  EXPECT_TRUE(out.equal(x));
}

TEST(Checked, ALateMessageOfAnotherShape) {
  const auto world = make_checked(make_self_communicator("pp"));
  world->send(at::zeros({4}), 0).wait();
  EXPECT_THAT(
      [&] {
        world->recv(at::zeros({2, 2}), 0).wait();
      },
      ThrowsMessage<BugError>(HasSubstr("self recv #")));          // it checks at once, itself
  EXPECT_THROW(world->recv(at::zeros({2}), 0).wait(), CommError);  // nothing more was sent
  EXPECT_THROW(world->send(at::zeros({2}), 1).wait(), BugError);
}

}  // namespace
}  // namespace quatrain
