// SPDX-License-Identifier: Apache-2.0
// See run.h.
#include "quatrain/report/run.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "quatrain/mesh/mesh.h"

namespace quatrain {
namespace {

using Json = nlohmann::json;

// JSON has no NaN: of a run that diverged, null stands in its place.
double to_number(const Json& value) { return value.is_null() ? kAbsent : value.get<double>(); }
double number_or(const Json& line, const char* key, double otherwise) {
  const auto found = line.find(key);
  return found == line.end() ? otherwise : to_number(*found);
}

// Throws Json's own exceptions, which name the key.
StepRecord step_of(const Json& line) {
  StepRecord step;
  step.step = line.at("step").get<std::int64_t>();
  step.loss = to_number(line.at("loss"));
  step.step_ms = line.at("step_ms").get<double>();
  step.tokens_per_s = line.at("tokens_per_s").get<double>();
  step.tokens = number_or(line, "tokens", 0.0);
  step.validation_loss = number_or(line, "validation_loss", kAbsent);
  step.exposed_comm_ms = number_or(line, "exposed_comm_ms", 0.0);
  step.bubble_ms = number_or(line, "bubble_ms", 0.0);
  step.mfu = number_or(line, "mfu", kAbsent);
  const Json peak = line.value("peak_bytes", Json::object());
  const Json comm = line.value("comm", Json::object());
  for (const auto& [category, bytes] : peak.items()) {
    if (category != "total") step.peak_bytes[category] = bytes.get<double>();
  }
  for (const auto& [axis, operations] : comm.items()) {
    for (const auto& [operation, counts] : operations.items()) {
      step.sent[axis][operation] = counts.at("bytes").get<double>();
    }
  }
  return step;
}

std::vector<StepRecord> steps_of(const RunTexts& texts, Problems& problems) {
  std::vector<StepRecord> steps;
  std::istringstream lines(texts.metrics);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const bool cut = lines.eof();  // no newline behind it
    if (line.empty()) continue;
    try {
      steps.push_back(step_of(Json::parse(line)));
    } catch (const Json::exception& error) {
      if (cut && !steps.empty()) break;
      problems.push_back({fmt::format("{}/metrics.jsonl:{}", texts.folder, number), error.what(),
                          "a line that `quatrain train` wrote"});
    }
  }
  if (number == 0) {
    problems.push_back({texts.folder + "/metrics.jsonl", "holds no step", "train at least one"});
  }
  return steps;
}

TraceSpan span_of(const Json& event) {
  TraceSpan span;
  span.rank = event.at("pid").get<int>();
  span.lane = event.at("cat").get<std::string>();
  const auto name = event.at("name").get<std::string>();
  span.action = parse_action(name.substr(0, name.find(' ')));  // "0F0.5 tp all_gather"
  span.begin_ms = event.at("ts").get<double>() / 1e3;
  span.end_ms = span.begin_ms + event.at("dur").get<double>() / 1e3;
  return span;
}

std::vector<TraceSpan> trace_of(const RunTexts& texts, Problems& problems) {
  std::vector<TraceSpan> spans;
  try {
    const Json document = Json::parse(*texts.trace);
    for (const Json& event : document.at("traceEvents")) {
      if (event.at("ph") == "X") spans.push_back(span_of(event));
    }
  } catch (const std::exception& error) {  // Json's, or ConfigError of an action
    problems.push_back({texts.folder + "/trace.json", error.what(),
                        "a trace of metrics.trace_steps, or no such file"});
  }
  return spans;
}

std::string degree(const char* name, int value) {
  return value > 1 ? fmt::format("{}{} ", name, value) : std::string();
}

}  // namespace

RunRecord read_run(const RunTexts& texts, Problems& problems) {
  RunRecord run;
  run.name = texts.folder.substr(texts.folder.find_last_of('/') + 1);
  run.steps = steps_of(texts, problems);
  try {
    run.plan = plan_from_json(texts.plan);
  } catch (const ConfigError& error) {
    problems.push_back({texts.folder + "/plan.json", error.what(), ""});
  }
  if (texts.trace) run.trace = trace_of(texts, problems);
  return run;
}

std::string short_text(const Plan& plan) {
  const auto of = [&](Axis axis) { return plan.degrees[static_cast<std::size_t>(axis)]; };
  std::string text = degree("tp", of(Axis::kTp));
  if (plan.sequence_parallel && !text.empty()) text.insert(text.size() - 1, "+sp");
  text += degree("cp", of(Axis::kCp)) + degree("ep", of(Axis::kEp)) + degree("etp", of(Axis::kEtp));
  text += degree("pp", of(Axis::kPp));
  text += degree("dp_replicate", of(Axis::kDpReplicate)) + degree("dp_shard", of(Axis::kDpShard));
  if (plan.zero_stage > 0) text += fmt::format("zero{} ", plan.zero_stage);
  if (of(Axis::kPp) > 1) text += plan.schedule + " ";
  if (text.empty()) return "one rank";
  text.pop_back();
  return text;
}

}  // namespace quatrain
