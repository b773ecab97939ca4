// SPDX-License-Identifier: Apache-2.0
// quatrain schedule list | show | check.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/guard.h"
#include "apps/schedule_options.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/schedule/check.h"
#include "quatrain/schedule/clock.h"
#include "quatrain/schedule/messages.h"
#include "quatrain/schedule/picture.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain::apps {
namespace {

using Json = nlohmann::ordered_json;

std::string chunks_text(const ScheduleInfo& info) {
  if (info.min_chunks == info.max_chunks) return fmt::format("{}", info.min_chunks);
  return fmt::format("{} or more", info.min_chunks);
}

int list(bool json) {
  Console console(json);
  Table table({"schedule", "placement", "chunks", "peak (chunk activations)", "bubble", "source"});
  Json all = Json::array();
  for (const ScheduleInfo& info : schedule_table()) {
    table.add({std::string(info.name), std::string(to_string(info.placement)), chunks_text(info),
               std::string(info.peak), std::string(info.bubble), std::string(info.source)});
    all.push_back({{"schedule", info.name},
                   {"placement", to_string(info.placement)},
                   {"chunks", chunks_text(info)},
                   {"peak", info.peak},
                   {"bubble", info.bubble},
                   {"source", info.source}});
  }
  console.line(table.to_string() +
               "p ranks, r of them this one, m micro-batches, v chunks a rank; F, I, W: times of "
               "forward and of the\nbackward's input and weight halves of a rank's whole share of "
               "a micro-batch");
  console.document({{"schedules", all}});
  return kDone;
}

struct ShowOptions {
  ScheduleOptions schedule;
  std::string format = "grid";
  bool lowered = false;
  bool colour = false;
  int columns = 100;
  bool json = false;
};

ShownSchedule shown(const ShowOptions& options) {
  ShownSchedule result;
  result.name = options.schedule.name;
  result.schedule = made(options.schedule);
  const Durations durations = durations_of(options.schedule, result.schedule);
  if (options.lowered) {
    result.schedule = with_messages(result.schedule, simulate(result.schedule, durations));
  }
  result.timeline = simulate(result.schedule, durations);
  result.peak_stash = peaks(options.schedule, result.schedule);
  return result;
}

std::string facts(const ShownSchedule& result) {
  const Timeline& timeline = result.timeline;
  return fmt::format(
      "makespan {:.6g}  span {:.6g}  bubble {:.6g} ({:.2f} %)  {} messages\nmost activations of "
      "a chunk kept, by rank: {:.6g}",
      timeline.makespan, timeline.span, timeline.bubble, 100 * timeline.bubble_rate,
      timeline.messages.size(), fmt::join(result.peak_stash, " "));
}

int show(const ShowOptions& options) {
  Console console(options.json);
  const ShownSchedule result = shown(options);
  if (options.json) {
    console.document(document(result));
  } else if (options.format == "csv") {
    std::string text = to_csv(result.schedule);
    text.pop_back();
    console.line(text);
  } else if (options.format == "svg") {
    console.line(to_svg(result.timeline, title(result)));
  } else if (options.format == "trace") {
    console.line(to_chrome_trace(result.timeline));
  } else {
    const GridOptions grid{.columns = options.columns, .colour = options.colour};
    console.line(title(result));
    console.line(to_grid(result.timeline, grid) + facts(result));
  }
  return kDone;
}

struct CheckOptions {
  std::string file;
  bool json = false;
};

Json to_json(const Violation& violation, const Schedule& schedule) {
  const Problem& problem = violation.problem;
  Json actions = Json::array();
  const auto at = [&](const Place& place) {
    return to_string(schedule.per_rank[static_cast<std::size_t>(place.rank)]
                                      [static_cast<std::size_t>(place.slot)]);
  };
  for (const Place& place : violation.actions) actions.push_back(at(place));
  Json result = {{"code", code(violation.rule)}, {"rank", nullptr}, {"action", nullptr}};
  if (!violation.actions.empty()) {
    result["rank"] = violation.actions.front().rank;
    result["action"] = actions.front();
  }
  result["message"] = to_string(Problems{problem});
  result["actions"] = actions;
  return result;
}

int refused(Console& console, const CheckOptions& options, const std::string& message) {
  console.line(fmt::format("{} is no schedule: {}", options.file, message));
  Json problem = {{"code", "syntax"}, {"rank", nullptr}, {"action", nullptr}, {"message", message}};
  console.document({{"valid", false}, {"problems", Json::array({problem})}});
  return kCheckSaidNo;
}

int check_file(const CheckOptions& options) {
  Console console(options.json);
  Schedule schedule;
  const std::string text = read_file(options.file);
  try {
    schedule = schedule_from_csv(text);
  } catch (const ConfigError& error) {
    return refused(console, options, error.what());
  }
  const std::vector<Violation> found = violations(schedule);
  Json problems = Json::array();
  for (const Violation& violation : found) {
    console.line(
        fmt::format("{}: {}", code(violation.rule), to_string(Problems{violation.problem})));
    problems.push_back(to_json(violation, schedule));
  }
  if (found.empty()) {
    console.line(fmt::format("valid: {} ranks, {} stages, {} micro-batches",
                             schedule.per_rank.size(), schedule.num_stages,
                             schedule.num_microbatches));
  }
  console.document({{"valid", found.empty()}, {"problems", problems}});
  return found.empty() ? kDone : kCheckSaidNo;
}

void add_json(CLI::App& parser, bool& json) {
  parser.add_flag("--json", json, "one JSON document on stdout, the rest on stderr");
}

}  // namespace

Registered add_schedule_list(CLI::App& schedule) {
  CLI::App* parser = schedule.add_subcommand("list", "The schedules, a line each");
  auto json = std::make_shared<bool>(false);
  add_json(*parser, *json);
  parser->footer("Example:\n  quatrain schedule list");
  return {parser, [json] { return list(*json); }};
}

Registered add_schedule_show(CLI::App& schedule) {
  CLI::App* parser = schedule.add_subcommand("show", "One schedule: its picture, times and peaks");
  auto options = std::make_shared<ShowOptions>();
  add_schedule_options(*parser, options->schedule);
  parser->add_option("--format", options->format, "what to print")
      ->check(CLI::IsMember({"grid", "csv", "svg", "trace"}))
      ->capture_default_str();
  parser->add_flag("--lowered", options->lowered, "with messages written out");
  parser->add_flag("--colour,--color", options->colour, "the grid in colour");
  parser->add_option("--columns", options->columns, "of the terminal")
      ->capture_default_str()
      ->check(CLI::Range(20, 10000));
  add_json(*parser, options->json);
  parser->footer(
      "Examples:\n  quatrain schedule show zb-h1 --ranks 4 --microbatches 8\n"
      "  quatrain schedule show zb-auto --ranks 8 --microbatches 24 --memory-limit 2 "
      "--times 18.5,18.1,9.3,0.6 --format svg > zb.svg");
  return {parser, [options] { return show(*options); }};
}

Registered add_schedule_check(CLI::App& schedule) {
  CLI::App* parser = schedule.add_subcommand("check", "Every problem of a schedule file");
  auto options = std::make_shared<CheckOptions>();
  parser->add_option("file", options->file, "CSV, a row a rank, as torch.distributed.pipelining's")
      ->required();
  add_json(*parser, options->json);
  parser->footer(
      "Exits with 1 when there are problems.\n"
      "Example:\n  quatrain schedule check my.csv");
  return {parser, [options] { return check_file(*options); }};
}

}  // namespace quatrain::apps
