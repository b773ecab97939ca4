// SPDX-License-Identifier: Apache-2.0
// One rank's collectives move the same numbers and refuse the same mistakes as any backend's.
#include "quatrain/comm/self/self.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "quatrain/base/error.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class SelfTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor numbers() const { return at::arange(12).reshape({4, 3}).to(GetParam()); }
  at::Tensor out() const { return at::zeros({4, 3}, at::TensorOptions().dtype(GetParam())); }
  std::unique_ptr<Communicator> world_ = make_self_communicator();
};

INSTANTIATE_TEST_SUITE_P(Dtypes, SelfTest,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16, at::kLong));

TEST_P(SelfTest, IsOneRank) {
  EXPECT_EQ(world_->rank(), 0);
  EXPECT_EQ(world_->size(), 1);
  EXPECT_EQ(world_->backend(), "self");
  EXPECT_EQ(world_->name(), "world");
  EXPECT_THAT(world_->ranks(), ::testing::ElementsAre(0));
}

TEST_P(SelfTest, ReductionsOfOneAreTheIdentity) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    at::Tensor x = numbers();
    world_->all_reduce(x, op).wait();
    EXPECT_TRUE(x.equal(numbers()));
    at::Tensor y = out();
    reduce_scatter(*world_, y, numbers(), op).wait();
    EXPECT_TRUE(y.equal(numbers()));
  }
}

TEST_P(SelfTest, GathersAndExchangesCopy) {
  at::Tensor gathered = out();
  all_gather(*world_, gathered, numbers()).wait();
  EXPECT_TRUE(gathered.equal(numbers()));
  at::Tensor exchanged = out();
  const std::array<std::int64_t, 1> rows = {4};
  world_->all_to_all(exchanged, numbers(), rows, rows).wait();
  EXPECT_TRUE(exchanged.equal(numbers()));
  world_->broadcast(exchanged, 0).wait();
  EXPECT_TRUE(exchanged.equal(numbers()));
  world_->barrier().wait();
}

TEST_P(SelfTest, ViewsAndEmptyTensors) {
  at::Tensor column = at::zeros({3, 4}, at::TensorOptions().dtype(GetParam())).t();
  all_gather(*world_, column, numbers()).wait();
  EXPECT_TRUE(column.equal(numbers()));
  at::Tensor same = numbers();
  all_gather(*world_, same, same).wait();
  EXPECT_TRUE(same.equal(numbers()));
  at::Tensor empty = at::empty({0, 3}, at::TensorOptions().dtype(GetParam()));
  const std::array<std::int64_t, 1> rows = {0};
  world_->all_to_all(empty, empty.clone(), rows, rows).wait();
  EXPECT_EQ(empty.numel(), 0);
}

TEST_P(SelfTest, MessagesArriveInOrderAsTheyWereSent) {
  at::Tensor message = numbers();
  world_->send(message, 0).wait();
  message.zero_();  // the sender's again after wait()
  world_->send(message, 0).wait();
  at::Tensor first = out().fill_(7);
  at::Tensor second = out().fill_(7);
  world_->recv(first, 0).wait();
  world_->recv(second, 0).wait();
  EXPECT_TRUE(first.equal(numbers()));
  EXPECT_TRUE(second.equal(out()));
}

TEST(Self, NothingToReceiveIsNotAHang) {
  const auto world = make_self_communicator("pp:0>0:F");
  EXPECT_THAT(
      [&] { world->recv(at::zeros({1}), 0).wait(); },
      ThrowsMessage<CommError>(HasSubstr("self recv #1 on pp:0>0:F {0}: nothing was sent")));
}

TEST(Self, MistakesNameOperationGroupAndSequence) {
  const auto world = make_self_communicator("dp");
  world->barrier().wait();
  EXPECT_THAT([&] { all_gather(*world, at::zeros({2}), at::zeros({3})).wait(); },
              ThrowsMessage<BugError>(AllOf(HasSubstr("self all_gather #2 on dp {0}"),
                                            HasSubstr("out = Float[2] but in = Float[3]"))));
  EXPECT_THAT(
      [&] {
        reduce_scatter(*world, at::zeros({2}), at::zeros({2}, at::kDouble), ReduceOp::kSum).wait();
      },
      ThrowsMessage<BugError>(HasSubstr("in = Double[2]")));
  const std::array<std::int64_t, 1> wrong = {1};
  const std::array<std::int64_t, 1> right = {2};
  EXPECT_THAT([&] { world->all_to_all(at::zeros({2}), at::zeros({2}), right, wrong).wait(); },
              ThrowsMessage<BugError>(HasSubstr("in rows {1} for in = Float[2]")));
  EXPECT_THROW(world->broadcast(at::zeros({2}), 1).wait(), BugError);
  EXPECT_THROW(world->send(at::zeros({2}), -1).wait(), BugError);
  EXPECT_THROW(world->all_reduce(at::Tensor(), ReduceOp::kSum).wait(), BugError);
}

TEST(Self, GroupsAreOfRankZero) {
  const auto world = make_self_communicator();
  const std::array<int, 1> alone = {0};
  const std::array<int, 2> two = {0, 1};
  EXPECT_EQ(world->group(alone, "control")->name(), "control");
  EXPECT_THAT([&] { world->group(two, "tp"); },
              ThrowsMessage<BugError>(HasSubstr("group \"tp\" of ranks {0, 1}")));
}

}  // namespace
}  // namespace quatrain
