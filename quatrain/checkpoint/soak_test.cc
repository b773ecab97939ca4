// SPDX-License-Identifier: Apache-2.0
// The whole of every scenario.
#include <gtest/gtest.h>

#include "quatrain/checkpoint/testing/scenarios.h"

namespace quatrain::testing {
namespace {

TEST(CheckpointSoak, AnyCutLoadsUnderAnyOther) {
  for (std::uint64_t seed = 0; seed < 10000; ++seed) expect_round_trip(seed);
}

TEST(CheckpointSoak, DamageIsFoundAndNamed) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) expect_damage_found(seed, 500, 50);
}

TEST(CheckpointSoak, PowerLossLeavesAWholeCheckpoint) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) expect_whole_after_power_loss(seed, 1000);
}

TEST(CheckpointSoak, EveryFaultOfEveryCallIsSurvived) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    expect_faults_survived(seed, true);
    expect_faults_survived(seed, false);
  }
}

}  // namespace
}  // namespace quatrain::testing
