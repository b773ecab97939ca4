// SPDX-License-Identifier: Apache-2.0
// Rows at 4 ranks and 8 micro-batches, as other implementations print them, and check() over a
// grid.
#include <gtest/gtest.h>

#include <algorithm>

#include "quatrain/base/error.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

constexpr std::string_view kGpipe =
    "0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,0B0,0B1,0B2,0B3,0B4,0B5,0B6,0B7\n"
    "1F0,1F1,1F2,1F3,1F4,1F5,1F6,1F7,1B0,1B1,1B2,1B3,1B4,1B5,1B6,1B7\n"
    "2F0,2F1,2F2,2F3,2F4,2F5,2F6,2F7,2B0,2B1,2B2,2B3,2B4,2B5,2B6,2B7\n"
    "3F0,3F1,3F2,3F3,3F4,3F5,3F6,3F7,3B0,3B1,3B2,3B3,3B4,3B5,3B6,3B7\n";
constexpr std::string_view kOneFOneB =
    "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7\n"
    "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7\n"
    "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7\n"
    "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7\n";

TEST(Gpipe, FourRanksEightMicrobatches) {
  EXPECT_EQ(to_csv(gpipe(4, 8)), kGpipe);
  EXPECT_EQ(schedule_from_csv(kGpipe), gpipe(4, 8));
}

TEST(OneFOneB, FourRanksEightMicrobatches) {
  EXPECT_EQ(to_csv(one_f_one_b(4, 8)), kOneFOneB);
  EXPECT_EQ(schedule_from_csv(kOneFOneB), one_f_one_b(4, 8));
}

TEST(OneFOneB, FewerMicrobatchesThanRanks) {
  EXPECT_EQ(to_csv(one_f_one_b(3, 1)), "0F0,0B0\n1F0,1B0\n2F0,2B0\n");
  EXPECT_EQ(to_csv(one_f_one_b(3, 2)), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n2F0,2B0,2F1,2B1\n");
}

TEST(OneFOneB, OneRankAlternates) {
  EXPECT_EQ(to_csv(one_f_one_b(1, 3)), "0F0,0B0,0F1,0B1,0F2,0B2\n");
}

// Micro-batches in flight at once: min(m, p - r) on rank r (section 2.2.1).
TEST(OneFOneB, PeakInFlight) {
  for (int p : {1, 2, 4, 7}) {
    for (int m : {1, 2, 5, 16}) {
      const Schedule schedule = one_f_one_b(p, m);
      for (int rank = 0; rank < p; ++rank) {
        int now = 0, peak = 0;
        for (const Action& action : schedule.per_rank[static_cast<std::size_t>(rank)]) {
          now += action.kind == ActionKind::kForward ? 1 : -1;
          peak = std::max(peak, now);
        }
        EXPECT_EQ(peak, std::min(m, p - rank)) << "p " << p << " m " << m << " rank " << rank;
      }
    }
  }
}

TEST(Generators, CheckOverAGrid) {
  for (std::string_view name : schedule_names()) {
    for (int p : {1, 2, 3, 4, 8, 16}) {
      for (int m : {1, 2, 3, 4, 7, 8, 33}) {
        const Schedule schedule = make_schedule(name, {.num_ranks = p, .num_microbatches = m});
        EXPECT_EQ(to_string(check(schedule)), "") << name << " p " << p << " m " << m;
        const Schedule full = with_optimizer_step(split_backward(schedule));
        EXPECT_EQ(to_string(check(full)), "") << name << " p " << p << " m " << m;
        EXPECT_EQ(schedule_from_csv(to_csv(full)), full);
      }
    }
  }
}

TEST(Generators, NonsenseIsABug) {
  EXPECT_THROW(gpipe(0, 1), BugError);
  EXPECT_THROW(one_f_one_b(1, 0), BugError);
}

}  // namespace
}  // namespace quatrain
