// SPDX-License-Identifier: Apache-2.0
// Times of operations on thread ranks: in order, and told only while somebody listens.
#include "quatrain/comm/timed.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "quatrain/comm/thread/thread.h"

namespace quatrain {
namespace {

TEST(Timed, TellsWhenAnOperationBeganAndWhetherItBlocked) {
  run_thread_ranks(2, {}, [](std::unique_ptr<Communicator> world) {
    CommListener listener;
    const auto timed = make_timed(std::move(world), listener);
    const int rank = timed->rank();
    const at::Tensor x = at::ones({4});
    timed->all_reduce(x, ReduceOp::kSum).wait();
    std::vector<CommTiming> told;
    listener = [&](const CommTiming& timing) {
      EXPECT_EQ(timing.group, timed->name());
      told.push_back(timing);
    };
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    Work work = timed->all_reduce(x, ReduceOp::kSum);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    work.wait();
    ASSERT_EQ(told.size(), 1U);
    EXPECT_EQ(told[0].operation, Operation::kAllReduce);
    EXPECT_LE(told[0].began, told[0].wait_began);
    EXPECT_LE(told[0].wait_began, told[0].ended);
    EXPECT_TRUE(rank == 1 || told[0].blocked) << "rank 1 came late";
    EXPECT_EQ(x[0].item<float>(), 4.0F);
  });
}

}  // namespace
}  // namespace quatrain
