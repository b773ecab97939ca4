// SPDX-License-Identifier: Apache-2.0
// Decorators over ranks that are threads: a rank that sleeps, vanishes, throws or calls what the
// others do not ends the job in time, and the error names rank, operation and sequence number.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>

#include "quatrain/base/error.h"
#include "quatrain/comm/checked.h"
#include "quatrain/comm/counting.h"
#include "quatrain/comm/faulty.h"
#include "quatrain/comm/thread/thread.h"
#include "quatrain/comm/watched.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;
using Rows = std::vector<std::int64_t>;
using RankMain = std::function<void(std::unique_ptr<Communicator> world)>;

constexpr Seconds kTimeout{0.5};  // also of a busy machine's start of threads
constexpr std::chrono::milliseconds kTooLong{900};

// The first error of the job, which ends within the timeout and two seconds.
std::string error_of(int n, const ThreadOptions& options, const RankMain& rank_main) {
  const auto begin = Clock::now();
  std::string text = "no error";
  try {
    run_thread_ranks(n, options, rank_main);
  } catch (const std::exception& error) {
    text = error.what();
  }
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(2500)) << text;
  return text;
}

void reduce(Communicator& comm, int times) {
  for (int i = 0; i < times; ++i) {
    at::Tensor x = at::zeros({8});
    comm.all_reduce(x, ReduceOp::kSum).wait();
  }
}

// The collectives of `check` groups alone are made: what the others call is compared, not done.
class HeadersOnly final : public Decorator {
 public:
  explicit HeadersOnly(std::unique_ptr<Communicator> inner) : Decorator(std::move(inner)) {}

 private:
  Work run(const Call& call) override {
    return name().ends_with(".check") ? forward(call) : Work();
  }
  std::unique_ptr<Communicator> wrap(std::unique_ptr<Communicator> group) override {
    return std::make_unique<HeadersOnly>(std::move(group));
  }
};

// A backend that notices nothing itself, with checks around it.
std::unique_ptr<Communicator> checked_only(std::unique_ptr<Communicator> world) {
  return make_checked(std::make_unique<HeadersOnly>(std::move(world)));
}

// ---- checked

class Case079 : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Case079, ::testing::Values(2, 3, 4));

std::string error_of_last_rank(int n, Fault fault) {
  return error_of(n, {}, [&](std::unique_ptr<Communicator> world) {
    const auto faulty = make_faulty(checked_only(std::move(world)),
                                    {{.rank = n - 1, .sequence = 3, .fault = fault}});
    reduce(*faulty, 5);
  });
}

TEST_P(Case079, case_079_FewerElementsAreAnError) {
  const int n = GetParam();
  EXPECT_THAT(error_of_last_rank(n, Fault::kWrongShape),
              AllOf(StartsWith("thread all_reduce #3 on world {0, 1"),
                    HasSubstr(fmt::format("rank {} calls all_reduce #3 Float[7] sum, "
                                          "rank 0 calls all_reduce #3 Float[8] sum",
                                          n - 1))));
}

TEST_P(Case079, case_079_AnotherOperationIsAnError) {
  const int n = GetParam();
  EXPECT_THAT(error_of_last_rank(n, Fault::kOtherOperation),
              HasSubstr(fmt::format("rank {} calls barrier #3, rank 0 calls all_reduce #3 "
                                    "Float[8] sum",
                                    n - 1)));
}

TEST_P(Case079, case_079_TheBackendSaysSoItself) {
  const int n = GetParam();
  for (const Fault fault : {Fault::kWrongShape, Fault::kOtherOperation}) {
    const std::string text = error_of(n, {}, [&](std::unique_ptr<Communicator> world) {
      const auto faulty =
          make_faulty(std::move(world), {{.rank = n - 1, .sequence = 3, .fault = fault}});
      reduce(*faulty, 5);
    });
    EXPECT_THAT(text,
                AllOf(HasSubstr("#3 on world {0, 1"), HasSubstr(fmt::format("rank {}", n - 1)),
                      AnyOf(HasSubstr("Float[7]"), HasSubstr("barrier"))));
  }
}

TEST(Checked, RowsOfAnUnevenGather) {
  const std::string text = error_of(3, {}, [](std::unique_ptr<Communicator> world) {
    const auto comm = checked_only(std::move(world));
    const Rows rows = {1, 2, comm->rank() == 1 ? 4 : 3};
    const std::int64_t mine = rows[static_cast<std::size_t>(comm->rank())];
    comm->all_gather(at::zeros({rows[0] + rows[1] + rows[2], 4}), at::zeros({mine, 4}), rows)
        .wait();
  });
  EXPECT_THAT(text, HasSubstr("rank 1 calls all_gather #1 Float[2, 4] rows {1, 2, 4}, "
                              "rank 0 calls all_gather #1 Float[1, 4] rows {1, 2, 3}"));
}

TEST(Checked, AMessageOfAnotherShape) {
  const std::string text = error_of(2, {}, [](std::unique_ptr<Communicator> world) {
    const std::vector<int> both = {0, 1};
    const auto comm = checked_only(std::move(world))->group(both, "pp:0>1:F");
    if (comm->rank() == 0) {
      comm->send(at::zeros({4}), 1).wait();
      comm->send(at::zeros({4}), 1).wait();
      return;
    }
    comm->recv(at::zeros({4}), 0).wait();
    comm->recv(at::zeros({2}), 0).wait();
  });
  EXPECT_EQ(text,
            "thread recv #2 on pp:0>1:F {0, 1}: rank 0 calls send #2 Float[4], "
            "rank 1 calls recv #2 Float[2]");
}

TEST(Checked, RanksAreTheWorlds) {
  const std::string text = error_of(3, {}, [](std::unique_ptr<Communicator> world) {
    if (world->rank() == 1) return;
    const std::vector<int> ends = {0, 2};
    const auto dp = checked_only(std::move(world))->group(ends, "dp");
    dp->broadcast(at::zeros({2}), dp->rank()).wait();
  });
  EXPECT_THAT(text, HasSubstr("broadcast #1 on dp {0, 2}: rank 2 calls broadcast #1 Float[2] "
                              "root 1, rank 0 calls"));
}

TEST(Checked, OperationsStayAsynchronous) {
  run_thread_ranks(2, {}, [](std::unique_ptr<Communicator> world) {
    const auto comm = make_checked(std::move(world));
    at::Tensor x = at::full({4}, comm->rank() + 1.0);
    if (comm->rank() == 0) {
      Work work = comm->all_reduce(x, ReduceOp::kSum);  // the other rank has not come yet
      EXPECT_FALSE(work.wait_until(Clock::now()));
      EXPECT_THAT(work.absent(), ::testing::ElementsAre(1));
      comm->send(at::zeros({1}), 1).wait();
      work.wait();
    } else {
      comm->recv(at::zeros({1}), 0).wait();
      comm->all_reduce(x, ReduceOp::kSum).wait();
    }
    EXPECT_TRUE(x.equal(at::full({4}, 3.0)));
  });
}

// ---- watched

TEST(Watched, case_080_TheReportNamesTheRankThatSleeps) {
  std::vector<WaitBoard> boards(4);
  const std::string text = error_of(4, {}, [&](std::unique_ptr<Communicator> world) {
    const int self = world->rank();
    const auto faulty = make_faulty(
        make_watched(std::move(world), {.timeout = kTimeout,
                                        .board = &boards[static_cast<std::size_t>(self)],
                                        .boards = boards}),
        {{.rank = 3, .group = "dp", .delay = kTooLong}});
    const std::vector<int> ends = {0, 3};
    faulty->barrier().wait();
    if (self == 0 || self == 3) reduce(*faulty->group(ends, "dp"), 2);
    faulty->barrier().wait();
  });
  EXPECT_THAT(text, AnyOf(HasSubstr("thread all_reduce #1 on dp {0, 3}: no answer in 0.5 s from "
                                    "ranks {3}; rank 0 last finished thread barrier #1 on world"),
                          HasSubstr("thread barrier #2 on world {0, 1, 2, 3}: no answer")));
  EXPECT_THAT(text, HasSubstr("rank 3 waits for nobody; last finished thread barrier #1 on world"));
}

// A rank that never comes: seen at once where all others wait for it, else by the clock.
std::string error_of_a_drop(int n, bool detect) {
  return error_of(n, {.detect_deadlock = detect}, [&](std::unique_ptr<Communicator> world) {
    const int last = n - 1;  // it waits too, for nobody, and must not be the first to say so
    const Seconds timeout = world->rank() == last ? Seconds{30.0} : kTimeout;
    const auto faulty = make_faulty(make_watched(std::move(world), {.timeout = timeout}),
                                    {{.rank = last, .sequence = 3, .fault = Fault::kDrop}});
    reduce(*faulty, 4);
  });
}

TEST(Watched, ARankThatNeverComes) {
  for (int n = 2; n <= 4; n += 2) {
    EXPECT_THAT(error_of_a_drop(n, false),
                AllOf(HasSubstr("thread all_reduce #3 on world {0, 1"),
                      HasSubstr(fmt::format("no answer in 0.5 s from ranks {{{}}}", n - 1))));
    const auto begin = Clock::now();
    EXPECT_THAT(error_of_a_drop(n, true),
                AllOf(HasSubstr("deadlock"), HasSubstr("rank 0: thread all_reduce #3 on world")));
    EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(490));
  }
}

TEST(Watched, ALongWaitTellsTheBoardWhoIsMissing) {
  std::vector<WaitBoard> boards(2);
  run_thread_ranks(2, {}, [&](std::unique_ptr<Communicator> world) {
    const int self = world->rank();
    const auto comm =
        make_watched(std::move(world),
                     {.timeout = Seconds{10.0}, .board = &boards[static_cast<std::size_t>(self)]});
    if (self == 1) {
      const std::string expected = "waits in thread barrier #1 on world {0, 1} for ranks {1}";
      const auto give_up = Clock::now() + std::chrono::seconds(5);
      while (!boards[0].to_string().starts_with(expected) && Clock::now() < give_up) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_THAT(boards[0].to_string(), StartsWith(expected));
    }
    comm->barrier().wait();
  });
  EXPECT_EQ(boards[0].to_string(),
            "waits for nobody; last finished thread barrier #1 on world {0, 1}");
}

// ---- all of them

struct Stack {
  CommCounts counts;
  WaitBoard board;
};

std::unique_ptr<Communicator> decorate(std::unique_ptr<Communicator> world, Stack& stack,
                                       std::vector<FaultRule> rules) {
  auto checked = make_checked(std::move(world));
  auto watched = make_watched(std::move(checked), {.timeout = kTimeout, .board = &stack.board});
  return make_faulty(make_counting(std::move(watched), stack.counts), std::move(rules));
}

class EveryFault : public ::testing::TestWithParam<std::tuple<int, Fault, Operation>> {};
INSTANTIATE_TEST_SUITE_P(
    Faults, EveryFault,
    ::testing::Combine(
        ::testing::Values(2, 3, 4),
        ::testing::Values(Fault::kDrop, Fault::kThrow, Fault::kWrongShape, Fault::kOtherOperation),
        ::testing::Values(Operation::kAllReduce, Operation::kAllGather, Operation::kReduceScatter,
                          Operation::kAllToAll, Operation::kBroadcast)));

// The operation on `comm`, well formed.
void call(Communicator& comm, Operation operation) {
  const int n = comm.size();
  const Rows rows(static_cast<std::size_t>(n), 2);
  const at::Tensor piece = at::zeros({2, 3});
  const at::Tensor whole = at::zeros({2 * n, 3});
  switch (operation) {
    case Operation::kAllReduce:
      return comm.all_reduce(whole, ReduceOp::kSum).wait();
    case Operation::kAllGather:
      return comm.all_gather(whole, piece, rows).wait();
    case Operation::kReduceScatter:
      return comm.reduce_scatter(piece, whole, rows, ReduceOp::kSum).wait();
    case Operation::kAllToAll:
      return comm.all_to_all(whole, whole.clone(), rows, rows).wait();
    case Operation::kBroadcast:
      return comm.broadcast(whole, 0).wait();
    default:
      return comm.barrier().wait();
  }
}

TEST_P(EveryFault, EndsTheJobWithRankOperationAndSequence) {
  const auto [n, fault, operation] = GetParam();
  const FaultRule rule{
      .rank = n - 1, .group = "world", .operation = operation, .sequence = 2, .fault = fault};
  const std::string text = error_of(n, {}, [&](std::unique_ptr<Communicator> world) {
    Stack stack;
    const auto comm = decorate(std::move(world), stack, {rule});
    comm->barrier().wait();
    call(*comm, operation);
    comm->barrier().wait();
  });
  EXPECT_THAT(text, AllOf(HasSubstr(name(operation)), HasSubstr("#2 on world {0, 1"),
                          HasSubstr(fmt::format("rank {}", n - 1))));
}

TEST(Decorators, ASleepingRankEndsTheJobAtTheTimeout) {
  for (int n = 2; n <= 4; ++n) {
    const FaultRule rule{.rank = n - 1,
                         .group = "world",
                         .operation = Operation::kAllGather,
                         .sequence = 2,
                         .delay = kTooLong};
    const std::string text = error_of(n, {}, [&](std::unique_ptr<Communicator> world) {
      Stack stack;
      const auto comm = decorate(std::move(world), stack, {rule});
      comm->barrier().wait();
      call(*comm, Operation::kAllGather);
    });
    EXPECT_THAT(text, AllOf(HasSubstr("thread all_gather #2 on world {0, 1"),
                            HasSubstr("no answer in 0.5 s from ranks"),
                            HasSubstr(fmt::format("{}}};", n - 1))));
  }
}

TEST(Decorators, TogetherMoveTheSameNumbersAndCount) {
  for (int n = 1; n <= 4; ++n) {
    run_thread_ranks(n, {}, [n](std::unique_ptr<Communicator> world) {
      Stack stack;
      const int self = world->rank();
      const auto comm = decorate(std::move(world), stack, {});
      at::Tensor x = at::full({n, 2}, self + 1.0);
      comm->all_reduce(x, ReduceOp::kSum).wait();
      EXPECT_TRUE(x.equal(at::full({n, 2}, n * (n + 1) / 2.0)));
      at::Tensor all = at::zeros({n, 3});
      all_gather(*comm, all, at::full({1, 3}, self + 0.0)).wait();
      for (int r = 0; r < n; ++r) EXPECT_EQ(all[r][2].item<double>(), r);
      Work received = comm->recv(x, (self + 1) % n);
      comm->send(at::full({n, 2}, self + 0.0), (self + n - 1) % n).wait();
      received.wait();
      EXPECT_TRUE(x.equal(at::full({n, 2}, (self + 1) % n + 0.0)));
      EXPECT_EQ(stack.counts.of("world", Operation::kAllReduce).bytes, Bytes{2 * (n - 1) * 2 * 4});
      EXPECT_EQ(stack.counts.of("world", Operation::kAllGather).bytes, Bytes{(n - 1) * 3 * 4});
      EXPECT_EQ(stack.counts.groups().size(), 1U);  // the checks are not counted
    });
  }
}

}  // namespace
}  // namespace quatrain
