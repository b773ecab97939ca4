// SPDX-License-Identifier: Apache-2.0
// quatrain schedule run: a schedule on the executor's rows, lanes and communicators, with stages
// that wait instead of computing.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/guard.h"
#include "apps/schedule_options.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/engine/clock_stages.h"
#include "quatrain/schedule/messages.h"

namespace quatrain::apps {
namespace {

struct RunOptions {
  ScheduleOptions schedule;
  double unit_ms = 20.0;
  int runs = 5;
  int steps = 1;
  bool post_validation = false;
  bool json = false;
};

// As the executor runs it: halves of pairs one after the other, messages in the order of time.
ShownSchedule simulated(const ScheduleOptions& options) {
  ShownSchedule result;
  result.name = options.name;
  const Schedule schedule = without_pairs(made(options));
  if (schedule.rank_of_stage.size() > 1) {
    throw ConfigError(fmt::format(
        "schedule: {} has two replicas of the parameters and the executor one; use dualpipe-v, "
        "the same pairs in one replica",
        options.name));
  }
  const Durations durations = durations_of(options, schedule);
  result.schedule = with_messages(schedule, simulate(schedule, durations));
  result.timeline = simulate(result.schedule, durations);
  result.peak_stash = peaks(options, result.schedule);
  return result;
}

ClockRun clock_run(const RunOptions& options) {
  const std::chrono::duration<double, std::milli> unit(options.unit_ms);
  return {.unit = std::chrono::duration_cast<std::chrono::nanoseconds>(unit),
          .steps = options.steps,
          .end = options.post_validation ? StepEnd::kPostValidation : StepEnd::kSum};
}

// The run with the median bubble rate; rows as they ran.
ShownSchedule measured(const RunOptions& options, const ShownSchedule& predicted) {
  const Durations durations = durations_of(options.schedule, predicted.schedule);
  std::vector<Timeline> timelines;
  for (int run = 0; run < options.runs; ++run) {
    timelines.push_back(run_on_clock(predicted.schedule, durations, clock_run(options)));
  }
  std::ranges::sort(timelines, {}, &Timeline::bubble_rate);
  ShownSchedule result = predicted;
  result.timeline = std::move(timelines[timelines.size() / 2]);
  for (std::size_t rank = 0; rank < result.schedule.per_rank.size(); ++rank) {
    std::vector<Action>& row = result.schedule.per_rank[rank];
    row.clear();
    for (const ClockEvent& event : result.timeline.per_rank[rank]) row.push_back(event.action);
  }
  result.peak_stash = peaks(options.schedule, result.schedule);
  return result;
}

// What with_messages() wrote is left out of the document.
ShownSchedule without_messages(ShownSchedule shown) {
  for (std::vector<Action>& row : shown.schedule.per_rank) {
    std::erase_if(row, [](const Action& action) { return action.kind > ActionKind::kBackward; });
  }
  return shown;
}

// From one step to the next: a sum over all ranks makes it the makespan, else it is the span.
struct Periods {
  double simulated, measured, work;
  double rate(double period) const { return 1.0 - work / period; }
};
Periods periods(const RunOptions& options, const Timeline& predicted, const Timeline& run) {
  return {options.post_validation ? predicted.span : predicted.makespan,
          step_period(run, options.steps), predicted.span - predicted.bubble};
}

std::string table_of_steps(const Periods& of) {
  Table table({"", "from step to step", "bubble rate"});
  const auto add = [&](const char* what, double period) {
    table.add(
        {what, fmt::format("{:.4g}", period), fmt::format("{:.2f} %", 100 * of.rate(period))});
  };
  add("simulated", of.simulated);
  add("measured", of.measured);
  return table.to_string();
}

std::string table_of_step(const Timeline& predicted, const Timeline& run) {
  Table table({"", "makespan", "span", "bubble", "bubble rate", "messages"});
  const auto add = [&](const char* what, const Timeline& timeline) {
    table.add({what, fmt::format("{:.4g}", timeline.makespan), fmt::format("{:.4g}", timeline.span),
               fmt::format("{:.4g}", timeline.bubble),
               fmt::format("{:.2f} %", 100 * timeline.bubble_rate),
               fmt::format("{}", timeline.messages.size())});
  };
  add("simulated", predicted);
  add("measured", run);
  return table.to_string();
}

int run(const RunOptions& options) {
  Console console(options.json);
  const ShownSchedule predicted = simulated(options.schedule);
  const ShownSchedule ran = measured(options, predicted);
  nlohmann::ordered_json both = {{"simulated", document(without_messages(predicted))},
                                 {"measured", document(ran)},
                                 {"unit_ms", options.unit_ms},
                                 {"runs", options.runs}};
  std::string table = table_of_step(predicted.timeline, ran.timeline);
  if (options.steps > 1) {
    const Periods of = periods(options, predicted.timeline, ran.timeline);
    table = table_of_steps(of);
    both["simulated"]["step_period"] = of.simulated;
    both["measured"]["step_period"] = of.measured;
  }
  console.line(fmt::format("{}\n{}a unit is {:.6g} ms; measured: the median of {} run{}",
                           title(predicted), table, options.unit_ms, options.runs,
                           options.runs == 1 ? "" : "s"));
  console.document(both);
  return kDone;
}

}  // namespace

Registered add_schedule_run(CLI::App& schedule) {
  CLI::App* parser = schedule.add_subcommand(
      "run", "One schedule on the executor, with stages that wait: measured against simulated");
  auto options = std::make_shared<RunOptions>();
  add_schedule_options(*parser, options->schedule);
  parser->add_option("--unit-ms", options->unit_ms, "of a unit of --times")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  parser->add_option("--runs", options->runs, "of which the median counts")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  parser->add_option("--steps", options->steps, "one behind the other; then of their period")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  parser->add_flag("--post-validation", options->post_validation,
                   "no sum over all ranks between steps, but the chain of post-validation");
  parser->add_flag("--json", options->json, "one JSON document on stdout, the rest on stderr");
  parser->footer(
      "Examples:\n  quatrain schedule run zb-h1 --ranks 4 --microbatches 8\n"
      "  quatrain schedule run zb-h2 --ranks 4 --microbatches 8 --steps 4 --post-validation");
  return {parser, [options] { return run(*options); }};
}

}  // namespace quatrain::apps
