// SPDX-License-Identifier: Apache-2.0
// Which schedule, at what times: options of `schedule show` and `schedule run`, and what both say
// of a timeline.
#pragma once
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "quatrain/schedule/clock.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain::apps {

struct ScheduleOptions {
  std::string name;                                                             // or file:PATH
  ScheduleRequest request{.num_ranks = 4, .num_microbatches = 8, .chunks = 0};  // 0: as usual
  std::vector<double> times{1, 1, 1, 0};                                        // F, I, W, message
  std::vector<double> stash{1, 0, -1};                                          // F, I, W
};
void add_schedule_options(CLI::App& parser, ScheduleOptions& options);

// As the options say, or read from its file and checked. Throws ConfigError.
Schedule made(const ScheduleOptions& options);
Durations durations_of(const ScheduleOptions& options, const Schedule& schedule);
// [rank] in the unit of --stash.
std::vector<double> peaks(const ScheduleOptions& options, const Schedule& schedule);

struct ShownSchedule {
  std::string name;
  Schedule schedule;
  Timeline timeline;
  std::vector<double> peak_stash;
};
std::string title(const ShownSchedule& shown);  // "1f1b: 4 ranks, 8 micro-batches, 1 chunk a rank"
nlohmann::ordered_json document(const ShownSchedule& shown);

}  // namespace quatrain::apps
