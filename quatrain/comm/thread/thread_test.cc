// SPDX-License-Identifier: Apache-2.0
// Ranks as threads: what every backend keeps (conformance), in every number of ranks; and what this
// one adds: deadlocks, mismatches and failures that end the job at once, with their names.
#include "quatrain/comm/thread/thread.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/comm/conformance.h"

namespace quatrain {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

at::Tensor ones(std::int64_t n) { return at::full({n}, 1.0, at::kFloat); }

// One thread a rank: torch's own pool would be a second crowd, unknown to ThreadSanitizer.
template <class Main>
void run(int n, Main main) {
  run_thread_ranks(n, {}, [&](std::unique_ptr<Communicator> world) {
    at::set_num_threads(1);
    main(std::move(world));
  });
}

// What each rank's main threw, and what the job threw.
struct Outcome {
  std::vector<std::string> ranks;
  std::string job;
  Clock::duration took{};
};

template <class Main>
Outcome outcome(int n, Main main) {
  Outcome result;
  result.ranks.resize(static_cast<std::size_t>(n));
  const Clock::time_point begin = Clock::now();
  try {
    run(n, [&](std::unique_ptr<Communicator> world) {
      const auto rank = static_cast<std::size_t>(world->rank());
      try {
        main(*world);
      } catch (const std::exception& error) {
        result.ranks[rank] = error.what();
        throw;
      }
    });
  } catch (const std::exception& error) {
    result.job = error.what();
  }
  result.took = Clock::now() - begin;
  return result;
}

class ThreadRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadRanks, ::testing::Values(1, 2, 3, 4, 5, 8));

TEST_P(ThreadRanks, Conform) {
  run_thread_ranks(GetParam(), {},
                   [](std::unique_ptr<Communicator> world) { check_conformance(*world, 1, 40); });
}

TEST_P(ThreadRanks, MoveLargeTensorsInParts) {
  run(GetParam(), [](std::unique_ptr<Communicator> world) {
    constexpr std::int64_t kRows = 100003;
    at::Tensor x = at::arange(kRows, at::kDouble).add(world->rank());
    world->all_reduce(x, ReduceOp::kMax).wait();
    EXPECT_TRUE(x.equal(at::arange(kRows, at::kDouble).add(world->size() - 1)));
    at::Tensor all = at::empty({kRows * world->size()}, at::kDouble);
    all_gather(*world, all, x).wait();
    at::Tensor mine = at::empty({kRows}, at::kDouble);
    reduce_scatter(*world, mine, all, ReduceOp::kSum).wait();
    EXPECT_TRUE(mine.equal(x.mul(world->size())));
  });
}

TEST_P(ThreadRanks, KnowThemselves) {
  std::atomic<int> seen{0};
  run(GetParam(), [&](std::unique_ptr<Communicator> world) {
    EXPECT_EQ(world->size(), GetParam());
    EXPECT_EQ(world->backend(), "thread");
    EXPECT_EQ(world->name(), "world");
    EXPECT_EQ(world->ranks()[static_cast<std::size_t>(world->rank())], world->rank());
    seen += 1 << world->rank();
  });
  EXPECT_EQ(seen, (1 << GetParam()) - 1);
}

TEST(Thread, ProgressesWithoutTheCaller) {
  run(2, [](std::unique_ptr<Communicator> world) {
    at::Tensor x = ones(1 << 20);
    Work work = world->all_reduce(x, ReduceOp::kSum);
    while (!work.done()) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(x[77].item<float>(), 2.0F);
    work.wait();
  });
}

TEST(Thread, DeadlineLeavesTheOperationInFlight) {
  run(2, [](std::unique_ptr<Communicator> world) {
    if (world->rank() == 1) std::this_thread::sleep_for(60ms);
    at::Tensor x = ones(3);
    Work work = world->all_reduce(x, ReduceOp::kSum);
    if (world->rank() == 0) {
      EXPECT_FALSE(work.wait_until(Clock::now() + 5ms));
      EXPECT_THAT(work.absent(), ::testing::ElementsAre(1));
    }
    work.wait();
    EXPECT_TRUE(work.absent().empty());
    EXPECT_EQ(x[2].item<float>(), 2.0F);
  });
}

TEST(Thread, DeadlockOfMessagesNamesBothWaits) {
  const Outcome result = outcome(2, [](Communicator& world) {
    at::Tensor x = ones(4);
    world.recv(x, 1 - world.rank()).wait();
  });
  EXPECT_THAT(result.job,
              AllOf(StartsWith("deadlock"),
                    HasSubstr("rank 0: thread recv #1 on world {0, 1}: waits for rank 1"),
                    HasSubstr("rank 1: thread recv #1 on world {0, 1}: waits for rank 0")));
  EXPECT_THAT(result.ranks, Each(result.job));
  EXPECT_LT(result.took, 500ms);
}

TEST(Thread, DeadlockByAnEarlyEnd) {
  const Outcome result = outcome(3, [](Communicator& world) {
    if (world.rank() == 2) return;
    const Work::Deadline deadline = Clock::now() + 30s;
    EXPECT_TRUE(world.barrier().wait_until(deadline));
  });
  EXPECT_THAT(result.job,
              AllOf(HasSubstr("rank 0: thread barrier #1 on world {0, 1, 2}: waits for rank 2"),
                    HasSubstr("rank 2: has ended")));
  EXPECT_LT(result.took, 500ms);
}

TEST(Thread, DeadlockOfTwoGroupsInAnotherOrder) {
  const Outcome result = outcome(4, [](Communicator& world) {
    const std::array<int, 2> pair = {world.rank() / 2 * 2, world.rank() / 2 * 2 + 1};
    const std::array<int, 2> first = {0, 1};
    const auto a = world.group(pair, "a");
    const auto b = world.group(pair, "b");
    at::Tensor x = ones(5);
    const bool swapped = world.rank() == first[1];
    (swapped ? b : a)->all_reduce(x, ReduceOp::kSum).wait();
    (swapped ? a : b)->all_reduce(x, ReduceOp::kSum).wait();
    world.barrier().wait();
  });
  EXPECT_THAT(result.job,
              AllOf(HasSubstr("rank 0: thread all_reduce #1 on a {0, 1}: waits for rank 1"),
                    HasSubstr("rank 1: thread all_reduce #1 on b {0, 1}: waits for rank 0"),
                    HasSubstr("rank 2: thread barrier #1 on world {0, 1, 2, 3}: waits for ranks")));
}

TEST(Thread, SlowRanksAreNoDeadlock) {
  for (int round = 0; round < 20; ++round) {
    run(3, [&](std::unique_ptr<Communicator> world) {
      for (int i = 0; i < 5; ++i) {
        if (i % world->size() == world->rank()) std::this_thread::sleep_for(300us);
        world->barrier().wait();
        at::Tensor x = ones(9000);
        world->all_reduce(x, ReduceOp::kSum).wait();
      }
    });
  }
}

TEST(Thread, case_142_TheFirstErrorComesFirst) {
  const Outcome result = outcome(8, [](Communicator& world) {
    for (int step = 1; step <= 5; ++step) {
      at::Tensor x = ones(20000);
      if (world.rank() == 5 && step == 3) throw DataError("token file ends at sample 17");
      world.all_reduce(x, ReduceOp::kSum).wait();
    }
  });
  EXPECT_EQ(result.job, "token file ends at sample 17");
  for (std::size_t rank = 0; rank < 8; ++rank) {
    if (rank == 5) continue;
    EXPECT_EQ(result.ranks[rank], "rank 5 failed first: token file ends at sample 17");
  }
}

TEST(Thread, TheErrorKeepsItsType) {
  const auto job = [] {
    run(2, [](std::unique_ptr<Communicator> world) {
      if (world->rank() == 1) throw std::out_of_range("far");
      EXPECT_THROW(world->barrier().wait(), CommError);
    });
  };
  EXPECT_THROW(job(), std::out_of_range);
}

// The thrower's tensors die while peers may be reading them: AddressSanitizer is the judge.
TEST(Thread, ThrowingWhilePeersRead) {
  for (int round = 0; round < 30; ++round) {
    const Outcome result = outcome(3, [&](Communicator& world) {
      at::Tensor x = ones(200000);
      at::Tensor y = at::empty({600000}, at::kFloat);
      Work first = all_gather(world, y, x);
      Work second = world.all_reduce(x, ReduceOp::kSum);
      if (world.rank() == round % 3) throw std::runtime_error("broken");
      first.wait();
      second.wait();
      world.barrier().wait();
    });
    EXPECT_EQ(result.job, "broken");
  }
}

// A tensor that counts in `alive` until it dies, which must be on this thread.
at::Tensor mortal(std::vector<float>& memory, int& alive) {
  const std::thread::id owner = std::this_thread::get_id();
  const auto release = [&alive, owner](void* /*memory*/) {
    EXPECT_EQ(std::this_thread::get_id(), owner);
    --alive;
  };
  ++alive;
  return at::from_blob(memory.data(), {static_cast<std::int64_t>(memory.size())}, release,
                       at::TensorOptions().dtype(at::kFloat));
}

TEST(Thread, TensorsAreReleasedByTheirRank) {
  for (const bool fails : {false, true}) {
    const Outcome result = outcome(3, [&](Communicator& world) {
      std::vector<float> one(100000, 1.0F);
      std::vector<float> other = one;
      int alive = 0;
      try {
        Work first = world.all_reduce(mortal(one, alive), ReduceOp::kSum);
        Work second = world.all_reduce(mortal(other, alive), ReduceOp::kMax);
        EXPECT_EQ(alive, 2);
        if (fails && world.rank() == 1) throw std::runtime_error("broken");
        first.wait();
        EXPECT_EQ(alive, 1);
        second.wait();
        EXPECT_EQ(alive, 0);
        world.barrier().wait();
      } catch (const std::exception&) {
        EXPECT_EQ(alive, 0);
        throw;
      }
    });
    EXPECT_EQ(result.job, fails ? "broken" : "");
  }
}

TEST(Thread, MismatchesNameBothCalls) {
  const auto job = [](auto main) { return outcome(2, main).job; };
  const auto x = [](std::int64_t n) { return ones(n); };
  EXPECT_THAT(job([&](Communicator& w) {
                if (w.rank() == 0) w.all_reduce(x(4), ReduceOp::kSum).wait();
                if (w.rank() == 1) w.broadcast(x(4), 0).wait();
              }),
              AllOf(HasSubstr("#1 on world {0, 1}: rank "), HasSubstr("all_reduce sum Float[4]"),
                    HasSubstr("broadcast from 0 Float[4]")));
  EXPECT_THAT(job([&](Communicator& w) { w.all_reduce(x(4 + w.rank()), ReduceOp::kSum).wait(); }),
              AllOf(HasSubstr("all_reduce sum Float[4]"), HasSubstr("all_reduce sum Float[5]")));
  EXPECT_THAT(job([&](Communicator& w) {
                w.all_reduce(x(4), w.rank() == 0 ? ReduceOp::kMax : ReduceOp::kMin).wait();
              }),
              AllOf(HasSubstr("all_reduce max"), HasSubstr("all_reduce min")));
  EXPECT_THAT(job([&](Communicator& w) { w.broadcast(x(4), w.rank()).wait(); }),
              AllOf(HasSubstr("broadcast from 0"), HasSubstr("broadcast from 1")));
  EXPECT_THAT(
      job([&](Communicator& w) {
        w.all_reduce(x(4).to(w.rank() == 0 ? at::kFloat : at::kLong), ReduceOp::kSum).wait();
      }),
      AllOf(HasSubstr("Float[4]"), HasSubstr("Long[4]")));
  EXPECT_THAT(job([&](Communicator& w) {
                const std::array<std::int64_t, 2> rows = {1 + w.rank(), 2 - w.rank()};
                w.all_gather(x(3), x(1), rows).wait();
              }),
              AllOf(HasSubstr("rows {1, 2}"), HasSubstr("rows {2, 1}")));
  EXPECT_THAT(job([&](Communicator& w) {
                if (w.rank() == 0) w.send(x(3), 1).wait();
                if (w.rank() == 1) w.recv(x(4), 0).wait();
              }),
              AllOf(HasSubstr("send Float[3]"), HasSubstr("recv Float[4]")));
  EXPECT_THAT(job([&](Communicator& w) {
                const std::array<std::int64_t, 2> in = {1, 2};
                const std::array<std::int64_t, 2> out = {1, w.rank() == 0 ? 3 : 2};
                w.all_to_all(x(1 + out[1]), x(3), out, in).wait();
              }),
              HasSubstr("all_to_all Float[rows] in rows {1, 2} out rows {1, 3}"));
}

TEST(Thread, GroupsOfOneListHaveOneName) {
  const Outcome result = outcome(2, [](Communicator& world) {
    const std::array<int, 2> both = {0, 1};
    const auto group = world.group(both, world.rank() == 0 ? "tp" : "dp");
    group->barrier().wait();
  });
  EXPECT_THAT(result.job, AllOf(HasSubstr("thread group on world {0, 1}"), HasSubstr("\"tp\""),
                                HasSubstr("\"dp\"")));
}

TEST(Thread, LocalMistakesAreBugs) {
  run(1, [](std::unique_ptr<Communicator> world) {
    const std::array<std::int64_t, 2> two = {1, 2};
    EXPECT_THROW(world->all_gather(ones(3), ones(1), two).wait(), BugError);
    EXPECT_THROW(all_gather(*world, ones(2), ones(3)).wait(), BugError);
    EXPECT_THROW(world->send(ones(1), 1).wait(), BugError);
    EXPECT_THROW(world->broadcast(at::Tensor(), 0).wait(), BugError);
    EXPECT_THROW(world->all_reduce(ones(1).to(at::kHalf), ReduceOp::kSum).wait(), BugError);
    const std::array<int, 1> none = {3};
    EXPECT_THROW((void)world->group(none, "x"), BugError);
  });
}

TEST(Thread, AForgottenOperationFailsTheJob) {
  const Outcome result = outcome(2, [](Communicator& world) {
    if (world.rank() == 0) {
      ::testing::internal::CaptureStderr();
      { Work work = world.barrier(); }
      ::testing::internal::GetCapturedStderr();
    } else {
      std::this_thread::sleep_for(20ms);
    }
    world.barrier().wait();
  });
  EXPECT_THAT(result.job, HasSubstr("thread barrier #1 on world {0, 1} was dropped without wait"));
}

// Of ranks that give up together the last must not accuse the first.
TEST(Thread, ARankThatHasLeftIsNotTheOneThatIsMissing) {
  std::atomic<bool> left{false};
  std::atomic<bool> seen{false};
  std::vector<int> absent;
  const auto until = [](const std::atomic<bool>& flag) {
    while (!flag) std::this_thread::yield();
  };
  const auto rank_main = [&](std::unique_ptr<Communicator> world) {
    if (world->rank() == 2) {
      until(seen);
      throw CommError("never comes");
    }
    Work work = world->barrier();
    if (world->rank() == 0) {
      try {
        const Work own = std::move(work);
        throw CommError("gives up");
      } catch (const CommError&) {
        left = true;
      }
      return until(seen);
    }
    until(left);
    absent = work.absent();
    seen = true;
    work.wait();
  };
  EXPECT_THROW(run_thread_ranks(3, {}, rank_main), CommError);
  EXPECT_EQ(absent, std::vector<int>{2});
}

}  // namespace
}  // namespace quatrain
