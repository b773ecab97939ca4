// SPDX-License-Identifier: Apache-2.0
// The mpi backend's own promises: the bits of a sum in the order of ranks, errors instead of ends,
// names of those who are missing, waits that end. The collectives' common checks are conformance.h.
#include "quatrain/comm/mpi/mpi.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>

#include "quatrain/base/error.h"
#include "quatrain/comm/conformance.h"
#include "quatrain/comm/mpi/mpi_test_main.h"

namespace quatrain {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Clock = std::chrono::steady_clock;

class MpiTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (world_->size() < 2) GTEST_SKIP();
  }
  std::vector<int> all() const {
    std::vector<int> ranks(static_cast<std::size_t>(world_->size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  // Errors leave a communicator's messages in an unknown state: each such test has its own.
  std::unique_ptr<Communicator> own_group(std::string_view name) {
    return world_->group(all(), name);
  }

  std::unique_ptr<Communicator> world_ = test_world().communicator();
};

// What rank `rank` brings: numbers whose sum depends on the order of the additions.
at::Tensor numbers(int rank, std::int64_t count, at::ScalarType dtype) {
  const at::Tensor i = at::arange(count, at::kDouble);
  const at::Tensor wave = i.mul(0.7).add(rank * 13.1).sin();
  const at::Tensor size = i.mul(0.3 + rank).cos().mul(3).exp();
  return wave.mul(size).to(dtype);
}

at::Tensor serial_sum(int size, std::int64_t count, at::ScalarType dtype) {
  const at::ScalarType wide = dtype == at::kBFloat16 ? at::kFloat : dtype;
  at::Tensor sum = numbers(0, count, dtype).to(wide);
  for (int r = 1; r < size; ++r) sum = sum.add(numbers(r, count, dtype).to(wide));
  return sum.to(dtype);
}

TEST(MpiWorldTest, RanksAgreeWithTheLauncher) {
  const Launch found = discover_launch(process_environment);
  EXPECT_EQ(found.launcher, Launcher::kOpenMpi);
  EXPECT_EQ(test_world().launch(), found);
  const auto world = test_world().communicator();
  EXPECT_EQ(world->rank(), found.rank);
  EXPECT_EQ(world->size(), found.size);
  EXPECT_EQ(world->backend(), "mpi");
  EXPECT_EQ(world->name(), "world");
}

TEST(MpiWorldTest, Conforms) { check_conformance(*test_world().communicator(), 7, 40); }

// Sizes around every border: one round or two, one chunk or several, pieces of unequal length.
TEST(MpiWorldTest, SumsAreInTheOrderOfRanksToTheBit) {
  const auto world = test_world().communicator();
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (std::int64_t count : {0, 1, 2, 7, 1000, 4096, 4097, 8193, 300007, 2000003}) {
      at::Tensor x = numbers(world->rank(), count, dtype);
      world->all_reduce(x, ReduceOp::kSum).wait();
      const at::Tensor expected = serial_sum(world->size(), count, dtype);
      EXPECT_TRUE(x.equal(expected)) << count << " " << c10::toString(dtype);

      std::vector<std::int64_t> rows(static_cast<std::size_t>(world->size()), 0);
      rows.back() = count / 3;
      rows.front() += count - count / 3;
      const std::int64_t mine = rows[static_cast<std::size_t>(world->rank())];
      at::Tensor piece = at::empty({mine}, dtype);
      world->reduce_scatter(piece, numbers(world->rank(), count, dtype), rows, ReduceOp::kSum)
          .wait();
      const std::int64_t begin = world->rank() == 0 ? 0 : count - mine;
      EXPECT_TRUE(piece.equal(expected.narrow(0, begin, mine)));
    }
  }
}

TEST(MpiWorldTest, ManyChunksOfManyOperationsAtOnce) {
  const auto world = test_world().communicator();
  const std::int64_t rows = 1 << 20;  // 4 MiB a rank and operation: more than one chunk
  std::vector<at::Tensor> gathered;
  std::vector<at::Tensor> summed;
  std::vector<Work> works;
  for (int i = 0; i < 4; ++i) {
    gathered.push_back(at::zeros({world->size() * (rows + 1)}));
    works.push_back(all_gather(*world, gathered.back(),
                               at::full({rows + 1}, static_cast<double>(i * 10 + world->rank()))));
    summed.push_back(at::full({rows}, static_cast<double>(i)));
    works.push_back(world->all_reduce(summed.back(), ReduceOp::kSum));
  }
  for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
  for (int i = 0; i < 4; ++i) {
    const auto at_i = static_cast<std::size_t>(i);
    EXPECT_TRUE(summed[at_i].eq(i * world->size()).all().item<bool>());
    for (int r = 0; r < world->size(); ++r) {
      EXPECT_TRUE(
          gathered[at_i].narrow(0, r * (rows + 1), rows + 1).eq(i * 10 + r).all().item<bool>());
    }
  }
}

TEST_F(MpiTest, OperationsProgressWhileNobodyWaits) {
  at::Tensor x = at::full({3 << 20}, 1.0);
  Work work = world_->all_reduce(x, ReduceOp::kSum);
  const auto end = Clock::now() + 20s;
  while (!work.done() && Clock::now() < end) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(work.done());
  work.wait();
  EXPECT_EQ(x[0].item<float>(), static_cast<float>(world_->size()));
}

TEST_F(MpiTest, DeadlinePassesAndTheAbsentAreNamed) {
  const auto dp = own_group("dp");
  if (dp->rank() == dp->size() - 1) std::this_thread::sleep_for(300ms);
  const auto begin = Clock::now();
  at::Tensor x = at::full({1 << 18}, 1.0);
  Work work = dp->all_reduce(x, ReduceOp::kSum);
  if (dp->rank() != dp->size() - 1) {
    EXPECT_FALSE(work.wait_until(begin + 100ms));
    EXPECT_THAT(work.absent(), ::testing::Contains(dp->size() - 1));
    EXPECT_GE(Clock::now() - begin, 100ms);
    EXPECT_FALSE(work.done());
  }
  work.wait();
  EXPECT_TRUE(work.absent().empty());
  EXPECT_EQ(x[17].item<float>(), static_cast<float>(dp->size()));
}

TEST_F(MpiTest, AWaitThatIsInterruptedEndsAndSaysForWhom) {
  const auto dp = own_group("dp");
  if (dp->rank() == 0) {
    std::thread signal([] {
      std::this_thread::sleep_for(50ms);
      test_interrupted() = true;
    });
    const auto begin = Clock::now();
    at::Tensor x = at::zeros({4});
    EXPECT_THAT([&] { dp->recv(x, 1).wait(); },
                ThrowsMessage<CommError>(AllOf(HasSubstr("mpi recv #1 on dp {0, 1"),
                                               HasSubstr("interrupted, waits for rank 1"))));
    EXPECT_LT(Clock::now() - begin, 2s);
    signal.join();
    test_interrupted() = false;
  }
  // Whoever comes within the grace time is heard.
  world_->barrier().wait();
  test_interrupted() = true;
  if (world_->rank() == 1) std::this_thread::sleep_for(30ms);
  EXPECT_NO_THROW(world_->barrier().wait());
  test_interrupted() = false;
  if (dp->rank() == 1) dp->send(at::zeros({4}), 0).wait();  // what rank 0 still waits for
}

TEST_F(MpiTest, MessagesOfAnotherLengthAreErrorsOfTheReceiver) {
  const auto dp = own_group("dp");
  if (dp->rank() == 1) {
    for (int i = 0; i < 2; ++i) dp->send(at::zeros({4}), 0).wait();
  } else if (dp->rank() == 0) {
    EXPECT_THAT([&] { dp->recv(at::zeros({2}), 1).wait(); },
                ThrowsMessage<CommError>(AllOf(HasSubstr("mpi recv #1 on dp {0, 1"),
                                               HasSubstr("rank 1 sent more than the 8 bytes"))));
    EXPECT_THAT([&] { dp->recv(at::zeros({5}), 1).wait(); },
                ThrowsMessage<CommError>(HasSubstr("rank 1 sent 16 bytes where 20 belong")));
  }
  const auto other = own_group("dp");
  at::Tensor x = at::zeros({other->rank() == 0 ? 3 : 4});
  EXPECT_THROW(other->all_reduce(x, ReduceOp::kSum).wait(), CommError);
}

TEST_F(MpiTest, GroupsInAnyOrderOfRanks) {
  std::vector<int> reversed = all();
  std::reverse(reversed.begin(), reversed.end());
  const auto back = world_->group(reversed, "back");
  EXPECT_EQ(back->rank(), world_->size() - 1 - world_->rank());
  EXPECT_THAT(back->ranks(), ::testing::ElementsAreArray(reversed));
  at::Tensor gathered = at::zeros({back->size()}, at::kLong);
  all_gather(*back, gathered, at::full({1}, world_->rank(), at::kLong)).wait();
  for (int i = 0; i < back->size(); ++i) {
    EXPECT_EQ(gathered[i].item<std::int64_t>(), reversed[static_cast<std::size_t>(i)]);
  }
  const std::vector<int> alone = {world_->rank()};
  const auto self = world_->group(alone, "self");
  at::Tensor x = at::full({100000}, 3.0);
  self->all_reduce(x, ReduceOp::kSum).wait();
  EXPECT_EQ(x[99999].item<float>(), 3);
}

}  // namespace
}  // namespace quatrain
