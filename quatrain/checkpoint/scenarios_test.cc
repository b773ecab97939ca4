// SPDX-License-Identifier: Apache-2.0
// The part of every scenario that each test run takes.
#include "quatrain/checkpoint/testing/scenarios.h"

#include <gtest/gtest.h>

namespace quatrain::testing {
namespace {

TEST(Scenarios, AnyCutLoadsUnderAnyOther) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) expect_round_trip(seed);
}

TEST(Scenarios, DamageIsFoundAndNamed) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) expect_damage_found(seed, 100, 20);
}

TEST(Scenarios, PowerLossLeavesAWholeCheckpoint) {
  for (std::uint64_t seed = 0; seed < 5; ++seed) expect_whole_after_power_loss(seed, 250);
}

TEST(Scenarios, EveryFaultOfEveryCallIsSurvived) {
  expect_faults_survived(1, true);
  expect_faults_survived(1, false);
}

}  // namespace
}  // namespace quatrain::testing
