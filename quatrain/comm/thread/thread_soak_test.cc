// SPDX-License-Identifier: Apache-2.0
// 10,000 random sequences of mixed operations in flight on overlapping groups.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "quatrain/comm/conformance.h"
#include "quatrain/comm/thread/thread.h"

namespace quatrain {
namespace {

class ThreadSoak : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadSoak, ::testing::Values(2, 3, 4, 5, 8));

TEST_P(ThreadSoak, RandomSequencesEnd) {
  run_thread_ranks(GetParam(), {}, [](std::unique_ptr<Communicator> world) {
    at::set_num_threads(1);
    auto groups = make_overlapping_groups(*world);
    check_random_sequences(*world, groups, 2026, 2000);
  });
}

TEST_P(ThreadSoak, Conform) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    run_thread_ranks(GetParam(), {}, [&](std::unique_ptr<Communicator> world) {
      at::set_num_threads(1);
      check_conformance(*world, seed, 200);
    });
  }
}

}  // namespace
}  // namespace quatrain
