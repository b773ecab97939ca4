// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <type_traits>
#include <utility>

#include "quatrain/comm/communicator.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;

static_assert(!std::is_copy_constructible_v<Work>);

struct Counting : Work::State {
  explicit Counting(int& count) : waits(count) {}
  bool wait_until(Work::Deadline deadline) override {
    ++waits;
    return deadline == Work::kNever;
  }
  bool done() const override { return false; }
  int& waits;
};

struct Failing : Work::State {
  bool wait_until(Work::Deadline /*deadline*/) override { throw std::runtime_error("peer gone"); }
  bool done() const override { return false; }
};

template <class F>
std::string stderr_of(F f) {
  ::testing::internal::CaptureStderr();
  f();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Work, WaitsOnce) {
  int waits = 0;
  Work work(std::make_unique<Counting>(waits));
  EXPECT_FALSE(work.done());
  work.wait();
  work.wait();
  EXPECT_TRUE(work.done());
  EXPECT_EQ(waits, 1);
}

TEST(Work, MayBeWaitedForAgainAfterADeadline) {
  int waits = 0;
  Work work(std::make_unique<Counting>(waits));
  EXPECT_FALSE(work.wait_until(std::chrono::steady_clock::now()));
  EXPECT_FALSE(work.done());
  EXPECT_TRUE(work.wait_until(Work::kNever));
  EXPECT_TRUE(work.done());
  EXPECT_EQ(waits, 2);
}

TEST(Work, EmptyIsDone) {
  Work work;
  EXPECT_TRUE(work.done());
  work.wait();
}

TEST(Work, MovesItsDuty) {
  int waits = 0;
  const std::string text = stderr_of([&] {
    Work first(std::make_unique<Counting>(waits));
    Work second(std::move(first));
    Work third;
    third = std::move(second);
    third.wait();
  });
  EXPECT_EQ(text, "");
  EXPECT_EQ(waits, 1);
}

TEST(Work, ForgottenIsReported) {
  int waits = 0;
  EXPECT_THAT(stderr_of([&] { Work work(std::make_unique<Counting>(waits)); }),
              HasSubstr("dropped without wait()"));
  EXPECT_THAT(stderr_of([&] {
                Work work(std::make_unique<Counting>(waits));
                work = Work();
              }),
              HasSubstr("dropped without wait()"));
}

TEST(Work, UnwindingIsNoBug) {
  EXPECT_EQ(stderr_of([&] {
              int waits = 0;
              try {
                Work forgotten(std::make_unique<Counting>(waits));
                Work work(std::make_unique<Failing>());
                work.wait();
              } catch (const std::runtime_error&) {
              }
            }),
            "");
}

}  // namespace
}  // namespace quatrain
