// SPDX-License-Identifier: Apache-2.0
// Each fault does what its name says, where its rule says, and nowhere else.
#include "quatrain/comm/faulty.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "quatrain/base/error.h"
#include "quatrain/comm/counting.h"
#include "quatrain/comm/self/self.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Clock = std::chrono::steady_clock;

// What arrives below the faults is counted.
std::unique_ptr<Communicator> faulty(CommCounts& counts, std::vector<FaultRule> rules) {
  return make_faulty(make_counting(make_self_communicator(), counts), std::move(rules));
}

TEST(Faulty, OnlyTheCallOfTheRule) {
  CommCounts counts;
  const auto world =
      faulty(counts, {{.group = "tp", .fault = Fault::kThrow},
                      {.rank = 5, .fault = Fault::kThrow},
                      {.operation = Operation::kBarrier, .sequence = 3, .fault = Fault::kThrow}});
  world->barrier().wait();
  world->barrier().wait();
  EXPECT_THAT([&] { world->barrier().wait(); },
              ThrowsMessage<BugError>("fault: rank 0 throws at self barrier #3 on world {0}"));
  world->barrier().wait();
  const std::vector<int> alone = {0};
  EXPECT_THROW(world->group(alone, "tp")->barrier().wait(), BugError);
  world->group(alone, "dp")->barrier().wait();
}

TEST(Faulty, Delays) {
  CommCounts counts;
  const auto world =
      faulty(counts, {{.fault = Fault::kDelay, .delay = std::chrono::milliseconds(30)}});
  const auto begin = Clock::now();
  world->barrier().wait();
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(30));
  EXPECT_EQ(counts.total().calls, 1);
}

TEST(Faulty, DropsWithoutAnEnd) {
  CommCounts counts;
  const auto world = faulty(counts, {{.fault = Fault::kDrop}});
  Work work = world->barrier();
  EXPECT_FALSE(work.wait_until(Clock::now() + std::chrono::milliseconds(20)));
  EXPECT_FALSE(work.done());
  EXPECT_EQ(counts.total().calls, 0);
  world->barrier().wait();  // the next one is made
  EXPECT_EQ(counts.total().calls, 1);
  try {
    const Work forgotten = std::move(work);
    throw BugError("unwinding");  // leaves it behind without a report
  } catch (const BugError&) {
  }
}

TEST(Faulty, AnotherOperation) {
  CommCounts counts;
  const auto world = faulty(counts, {{.sequence = 1, .fault = Fault::kOtherOperation},
                                     {.sequence = 2, .fault = Fault::kOtherOperation}});
  world->all_reduce(at::zeros({4}), ReduceOp::kSum).wait();
  EXPECT_EQ(counts.of("world", Operation::kBarrier).calls, 1);
  world->barrier().wait();
  EXPECT_EQ(counts.of("world", Operation::kAllReduce).calls, 1);
}

TEST(Faulty, AWrongShapeIsStillALegalCall) {
  CommCounts counts;
  const auto world = faulty(counts, {{.sequence = 1, .fault = Fault::kWrongShape},
                                     {.sequence = 2, .fault = Fault::kWrongShape},
                                     {.sequence = 3, .fault = Fault::kWrongShape}});
  at::Tensor x = at::zeros({4, 2});
  all_gather(*world, x, x.clone()).wait();
  reduce_scatter(*world, x, x.clone(), ReduceOp::kSum).wait();
  world->send(x, 0).wait();
  EXPECT_EQ(counts.of("world", Operation::kSend).bytes, Bytes{7 * 4});
  EXPECT_EQ(counts.total().calls, 3);
}

TEST(FaultyDeathTest, Dies) {
  CommCounts counts;
  const auto world = faulty(counts, {{.fault = Fault::kDie}});
  EXPECT_EXIT(world->barrier().wait(), ::testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace quatrain
