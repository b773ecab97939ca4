// SPDX-License-Identifier: Apache-2.0
// main() of tests that are ranks of an MPI job: every rank runs every test, and the first failure
// of any rank ends the job, since the others could wait for that rank for ever.
#include "quatrain/comm/mpi/mpi_test_main.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>

namespace quatrain {
namespace {

std::optional<MpiWorld> the_world;
std::atomic<bool> interrupted{false};

class EndJobOnFailure final : public ::testing::EmptyTestEventListener {
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (!test.result()->Failed()) return;
    std::fflush(nullptr);
    the_world->end_job(1);
  }
};

}  // namespace

MpiWorld& test_world() { return *the_world; }
std::atomic<bool>& test_interrupted() { return interrupted; }

int run_tests(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  MpiOptions options;
  options.interrupted = [] { return interrupted.load(); };
  the_world.emplace(discover_launch(process_environment), std::move(options));
  ::testing::UnitTest::GetInstance()->listeners().Append(new EndJobOnFailure);
  const int failed = RUN_ALL_TESTS();
  the_world.reset();
  return failed;
}

}  // namespace quatrain

int main(int argc, char** argv) { return quatrain::run_tests(argc, argv); }
