// SPDX-License-Identifier: Apache-2.0
// Every schedule of the table at every shape worth trying.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {

struct GridPoint {
  std::string name;
  ScheduleRequest request;
};

inline std::string to_string(const GridPoint& point) {
  return point.name + " p " + std::to_string(point.request.num_ranks) + " m " +
         std::to_string(point.request.num_microbatches) + " v " +
         std::to_string(point.request.chunks);
}

inline std::vector<GridPoint> grid() {
  std::vector<GridPoint> points;
  for (std::string_view name : schedule_names()) {
    for (int p : {1, 2, 3, 4, 5, 8, 16}) {
      for (int m : std::set{1, p - 1, p, p + 1, 2 * p - 1, 2 * p, 4 * p, 2 * p + 3, 4 * p + 1}) {
        for (int v : {1, 2, 3, 4}) {
          if (m < 1) continue;
          points.push_back(
              {std::string(name), {.num_ranks = p, .num_microbatches = m, .chunks = v}});
        }
      }
    }
  }
  return points;
}

template <class F>
void for_part_of_grid(unsigned seed, std::size_t count, F f) {
  std::vector<GridPoint> points = grid();
  std::shuffle(points.begin(), points.end(), std::mt19937(seed));
  points.resize(std::min(count, points.size()));
  for (const GridPoint& point : points) f(point);
}

// Whether the schedule is defined here; what it refuses, it refuses with a reason.
inline bool defined(const GridPoint& point) {
  const int p = point.request.num_ranks, m = point.request.num_microbatches;
  if (point.name.starts_with("dualpipe") && m < 2 * p) return false;
  if (point.name == "dualpipe" && (p % 2 != 0 || m % 2 != 0)) return false;
  const std::vector<ScheduleInfo> table = schedule_table();
  return std::ranges::any_of(table, [&](const ScheduleInfo& info) {
    return info.name == point.name && point.request.chunks >= info.min_chunks &&
           point.request.chunks <= info.max_chunks;
  });
}

// The generator makes a schedule that check() finds nothing in, or refuses with a hint.
inline void expect_sound(const GridPoint& point) {
  if (!defined(point)) {
    try {
      make_schedule(point.name, point.request);
      ADD_FAILURE() << to_string(point) << " is not refused";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("; "), std::string::npos) << error.what();
    }
    return;
  }
  const Schedule schedule = make_schedule(point.name, point.request);
  EXPECT_EQ(to_string(check(schedule)), "") << to_string(point);
  EXPECT_EQ(schedule_from_csv(to_csv(schedule)), schedule) << to_string(point);
  const Schedule split = with_optimizer_step(split_backward(schedule));
  EXPECT_EQ(to_string(check(split)), "") << to_string(point);
}

}  // namespace quatrain
