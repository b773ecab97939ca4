// SPDX-License-Identifier: Apache-2.0
// Waits that end, and what they say when they do.
#include "quatrain/comm/watched.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <thread>

#include "quatrain/base/error.h"
#include "quatrain/comm/faulty.h"
#include "quatrain/comm/self/self.h"

namespace quatrain {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Clock = std::chrono::steady_clock;

constexpr Seconds kShort{0.05};

// A world of one whose third call never ends.
std::unique_ptr<Communicator> hangs_at_three(const WatchOptions& options) {
  return make_watched(
      make_faulty(make_self_communicator(), {{.sequence = 3, .fault = Fault::kDrop}}), options);
}

TEST(Watched, AWaitPastTheTimeoutNamesWhatItWaitedFor) {
  WaitBoard board;
  const auto world = hangs_at_three({.timeout = kShort, .board = &board});
  world->barrier().wait();
  world->broadcast(at::zeros({2}), 0).wait();
  Work work = world->all_reduce(at::zeros({2}), ReduceOp::kSum);
  EXPECT_FALSE(work.done());
  EXPECT_THAT([&] { work.wait(); },
              ThrowsMessage<CommError>(
                  AllOf(HasSubstr("self all_reduce #3 on world {0}: no answer in 0.05 s"),
                        HasSubstr("rank 0 last finished self broadcast #2 on world {0}"))));
}

TEST(Watched, TheCallersEarlierDeadlineIsKept) {
  const auto world = hangs_at_three({.timeout = Seconds{0.2}});
  world->barrier().wait();
  world->barrier().wait();
  Work work = world->barrier();
  const auto begin = Clock::now();
  EXPECT_FALSE(work.wait_until(begin + std::chrono::milliseconds(20)));
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(150));
  // The timeout counts from the first wait, however often the caller comes back.
  EXPECT_THROW(work.wait(), CommError);
  EXPECT_LT(Clock::now() - begin, std::chrono::milliseconds(1000));
}

TEST(Watched, GroupsAreWatchedToo) {
  const auto world =
      make_watched(make_faulty(make_self_communicator(), {{.group = "tp", .fault = Fault::kDrop}}),
                   {.timeout = kShort});
  const std::vector<int> alone = {0};
  const auto tp = world->group(alone, "tp");
  world->barrier().wait();
  EXPECT_THAT([&] { tp->barrier().wait(); },
              ThrowsMessage<CommError>(HasSubstr("self barrier #1 on tp {0}")));
}

TEST(Watched, ErrorsOfTheOperationPass) {
  const auto world = make_watched(make_self_communicator(), {.timeout = kShort});
  EXPECT_THROW(world->recv(at::zeros({1}), 0).wait(), CommError);
  EXPECT_THROW(world->send(at::zeros({1}), 3).wait(), BugError);
}

TEST(WaitBoard, SaysWhatIsWaitedForAndWhatWasFinished) {
  WaitBoard board;
  EXPECT_EQ(board.to_string(), "waits for nobody; has finished nothing");
  board.waits_for("mpi all_gather #3 on dp {0, 2} for ranks {2}");
  board.finished("mpi barrier #2 on dp {0, 2}");
  EXPECT_EQ(board.to_string(),
            "waits in mpi all_gather #3 on dp {0, 2} for ranks {2}; "
            "last finished mpi barrier #2 on dp {0, 2}");
  board.waits_for("");
  EXPECT_EQ(board.to_string(), "waits for nobody; last finished mpi barrier #2 on dp {0, 2}");
}

TEST(WaitBoard, LongTextIsCut) {
  WaitBoard board;
  board.waits_for(std::string(1000, 'x'));
  board.finished(std::string(1000, 'y'));
  const std::string text = board.to_string();
  EXPECT_THAT(text, HasSubstr(std::string(BoardLine::kBytes, 'x') + "; last"));
  EXPECT_TRUE(text.ends_with(std::string(BoardLine::kBytes, 'y')));
  std::array<char, 10> little;
  EXPECT_EQ(board.read(little), 10U);
  EXPECT_EQ(std::string_view(little.data(), 10), "waits in x");
}

TEST(WaitBoard, NoReaderSeesATornLine) {
  BoardLine line;
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (char c = 'a'; !stop; c = c == 'z' ? 'a' : static_cast<char>(c + 1)) {
      line.write(std::string(static_cast<std::size_t>(c - 'a' + 1) * 9, c));
    }
  });
  int lines = 0;
  const auto give_up = Clock::now() + std::chrono::seconds(5);
  while (lines < 20000 && Clock::now() < give_up) {
    std::array<char, BoardLine::kBytes> text;
    const std::size_t n = line.read(text);
    if (n == 0) continue;
    ++lines;
    const std::string expected(static_cast<std::size_t>(text[0] - 'a' + 1) * 9, text[0]);
    if (std::string(text.data(), n) != expected) {
      ADD_FAILURE() << std::string(text.data(), n);
      break;
    }
  }
  stop = true;
  writer.join();
  EXPECT_EQ(lines, 20000);
}

WaitBoard* interrupted = nullptr;
std::array<char, 600> printed;
std::size_t printed_length = 0;
void print_board(int) { printed_length = interrupted->read(printed); }

TEST(WaitBoard, ASignalHandlerReadsIt) {
  WaitBoard board;
  interrupted = &board;
  const auto world = hangs_at_three({.timeout = Seconds{0.3}, .board = &board});
  world->barrier().wait();
  world->barrier().wait();
  const auto before = std::signal(SIGUSR1, print_board);
  const pthread_t self = pthread_self();
  std::thread alarm([self] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    pthread_kill(self, SIGUSR1);
  });
  EXPECT_THROW(world->barrier().wait(), CommError);
  alarm.join();
  std::signal(SIGUSR1, before);
  EXPECT_EQ(std::string(printed.data(), printed_length),
            "waits in self barrier #3 on world {0}; last finished self barrier #2 on world {0}");
}

}  // namespace
}  // namespace quatrain
