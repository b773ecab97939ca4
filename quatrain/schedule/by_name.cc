// SPDX-License-Identifier: Apache-2.0
// The table of schedules: a new one adds its line here.
#include <fmt/format.h>

#include <array>

#include "quatrain/base/text.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

struct Entry {
  std::string_view name;
  bool chunked;  // takes chunks > 1
  Schedule (*make)(const ScheduleRequest&);
};

constexpr std::array kSchedules = {
    Entry{"gpipe", false,
          [](const ScheduleRequest& r) { return gpipe(r.num_ranks, r.num_microbatches); }},
    Entry{"1f1b", false,
          [](const ScheduleRequest& r) { return one_f_one_b(r.num_ranks, r.num_microbatches); }},
};

Problems problems_of(const Entry& entry, const ScheduleRequest& request) {
  Problems problems;
  const auto at_least_one = [&](std::string_view what, int value) {
    if (value >= 1) return;
    problems.push_back({"schedule", fmt::format("{} = {}", what, value), "use 1 or more"});
  };
  at_least_one("num_ranks", request.num_ranks);
  at_least_one("num_microbatches", request.num_microbatches);
  at_least_one("chunks", request.chunks);
  if (!entry.chunked && request.chunks > 1) {
    problems.push_back({"schedule",
                        fmt::format("{} has one chunk a rank, not {}", entry.name, request.chunks),
                        "set chunks = 1"});
  }
  return problems;
}

}  // namespace

std::vector<std::string_view> schedule_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : kSchedules) names.push_back(entry.name);
  return names;
}

Schedule make_schedule(std::string_view name, const ScheduleRequest& request) {
  std::vector<std::string> known;
  for (const Entry& entry : kSchedules) {
    known.emplace_back(entry.name);
    if (entry.name != name) continue;
    throw_if_any(problems_of(entry, request));
    return entry.make(request);
  }
  std::string text = fmt::format("no schedule is named \"{}\"", name);
  const std::vector<std::string> near = nearest(name, known, 1);
  if (!near.empty()) text += fmt::format("; did you mean \"{}\"?", near.front());
  throw ConfigError(text + " (schedules: " + join(known, ", ") + ")");
}

}  // namespace quatrain
