// SPDX-License-Identifier: Apache-2.0
#include "apps/schedule_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"

namespace quatrain::apps {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFile = "file:";

// The fewest that the schedule has; two where it is made for several.
int usual_chunks(std::string_view name) {
  for (const ScheduleInfo& info : schedule_table()) {
    if (info.name == name) return std::min(2, std::max(info.min_chunks, info.max_chunks));
  }
  return 1;
}

RankTimes rank_times(const ScheduleOptions& options) {
  const std::vector<double>& times = options.times;
  return {times[0], times[1], times[2], times[3]};
}

StashDeltas stash_deltas(const ScheduleOptions& options) {
  return {options.stash[0], options.stash[1], options.stash[2]};
}

ScheduleRequest complete(const ScheduleOptions& options) {
  ScheduleRequest request = options.request;
  if (request.chunks == 0) request.chunks = usual_chunks(options.name);
  request.costs.times = rank_times(options);
  request.costs.stash = stash_deltas(options);
  return request;
}

int chunks_of(const Schedule& schedule) {
  return schedule.num_stages / static_cast<int>(schedule.per_rank.size());
}

// Whole numbers without ".0": most schedules are drawn at unit times.
Json number(double value) {
  const double whole = std::round(value);
  if (value == whole && std::abs(value) < 1e15) return static_cast<std::int64_t>(whole);
  return value;
}

}  // namespace

void add_schedule_options(CLI::App& parser, ScheduleOptions& options) {
  ScheduleRequest& request = options.request;
  parser.add_option("name", options.name, "a schedule of the list, or file:PATH.csv")->required();
  parser.add_option("--ranks", request.num_ranks, "pipeline ranks")->capture_default_str();
  parser.add_option("--microbatches", request.num_microbatches)->capture_default_str();
  parser.add_option("--chunks", request.chunks, "stages a rank; default: what it is made for");
  parser.add_option("--group", request.group,
                    "micro-batches that pass a chunk before the next, of interleaved schedules");
  parser
      .add_option("--times", options.times,
                  "F,I,W,message: a rank's whole share of a micro-batch, and one message, in any "
                  "unit (F,B,W,comm)")
      ->delimiter(',')
      ->expected(4)
      ->check(CLI::NonNegativeNumber);
  parser
      .add_option("--stash", options.stash,
                  "F,I,W: what each action of a stage adds to what its rank keeps (F,B,W)")
      ->delimiter(',')
      ->expected(3);
  parser
      .add_option("--memory-limit", request.costs.memory_limit,
                  "of schedules made for costs, in the activations of as many micro-batches as "
                  "there are ranks: 1 is ZB-1p, 2 ZB-2p")
      ->check(CLI::PositiveNumber);
}

Schedule made(const ScheduleOptions& options) {
  if (!options.name.starts_with(kFile)) return make_schedule(options.name, complete(options));
  const std::string path = options.name.substr(kFile.size());
  Schedule schedule = schedule_from_csv(read_file(path));
  throw_if_any(check(schedule));
  return schedule;
}

Durations durations_of(const ScheduleOptions& options, const Schedule& schedule) {
  return even_durations(schedule, rank_times(options));
}

std::vector<double> peaks(const ScheduleOptions& options, const Schedule& schedule) {
  const std::vector<StashDeltas> stash(static_cast<std::size_t>(schedule.num_stages),
                                       stash_deltas(options));
  return peak_stash(schedule, stash);
}

std::string title(const ShownSchedule& shown) {
  const int chunks = chunks_of(shown.schedule);
  return fmt::format("{}: {} ranks, {} micro-batches, {} chunk{} a rank", shown.name,
                     shown.schedule.per_rank.size(), shown.schedule.num_microbatches, chunks,
                     chunks == 1 ? "" : "s");
}

Json document(const ShownSchedule& shown) {
  const Timeline& timeline = shown.timeline;
  Json peaks = Json::array(), exposed = Json::array(), rows = Json::array();
  for (double peak : shown.peak_stash) peaks.push_back(number(peak));
  for (double time : timeline.exposed_communication) exposed.push_back(time);
  for (const std::vector<Action>& row : shown.schedule.per_rank) {
    Json texts = Json::array();
    for (const Action& action : row) texts.push_back(to_string(action));
    rows.push_back(std::move(texts));
  }
  return {{"schedule", shown.name},
          {"ranks", shown.schedule.per_rank.size()},
          {"microbatches", shown.schedule.num_microbatches},
          {"chunks", chunks_of(shown.schedule)},
          {"makespan", timeline.makespan},
          {"span", timeline.span},
          {"bubble", timeline.bubble},
          {"bubble_rate", timeline.bubble_rate},
          {"peak_stash", peaks},
          {"messages", timeline.messages.size()},
          {"exposed_communication", exposed},
          {"rows", rows}};
}

}  // namespace quatrain::apps
