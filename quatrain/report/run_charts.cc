// SPDX-License-Identifier: Apache-2.0
// See run_charts.h.
#include "quatrain/report/run_charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "quatrain/base/median.h"
#include "quatrain/report/chart.h"

namespace quatrain {
namespace {

constexpr std::size_t kSmoothedFrom = 30;  // steps; shorter curves are shown as they are

double median_of(const RunRecord& run, double StepRecord::*member) {
  std::vector<double> values;
  for (const StepRecord& step : run.steps) values.push_back(step.*member);
  if (values.size() > 1) values.erase(values.begin());
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return values.empty() ? kAbsent : median(std::move(values));
}

std::vector<double> column(const RunRecord& run,
                           const std::function<double(const StepRecord&)>& of) {
  std::vector<double> values;
  for (const StepRecord& step : run.steps) values.push_back(of(step));
  return values;
}

std::vector<double> numbers(const RunRecord& run) {
  return column(run, [](const StepRecord& step) { return static_cast<double>(step.step); });
}

// Means of a window as wide as a fifteenth of the curve.
std::vector<double> smoothed(const std::vector<double>& values) {
  const std::size_t half = std::max<std::size_t>(values.size() / 30, 1);
  std::vector<double> result;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t from = i - std::min(i, half), to = std::min(values.size(), i + half + 1);
    const auto at = [&](std::size_t n) { return values.begin() + static_cast<std::ptrdiff_t>(n); };
    result.push_back(std::accumulate(at(from), at(to), 0.0) / static_cast<double>(to - from));
  }
  return result;
}

// A curve, and behind it what it smooths.
void add_curve(XyChart& chart, const RunRecord& run, int colour, std::vector<double> values) {
  const std::vector<double> x = numbers(run);
  if (values.size() >= kSmoothedFrom) {
    chart.series.push_back({run.name, x, values, colour, false, true});
    values = smoothed(values);
  }
  chart.series.push_back({run.name, x, std::move(values), colour});
}

std::string loss_chart(std::span<const RunRecord> runs) {
  XyChart chart{.title = "Loss", .x = {.label = "step"}, .y = {.label = "nats a token"}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const int colour = static_cast<int>(i);
    add_curve(chart, runs[i], colour,
              column(runs[i], [](const StepRecord& step) { return step.loss; }));
    Series held{runs[i].name + ", validation", {}, {}, colour, true};
    for (const StepRecord& step : runs[i].steps) {
      if (!std::isfinite(step.validation_loss)) continue;
      held.x.push_back(static_cast<double>(step.step));
      held.y.push_back(step.validation_loss);
    }
    if (runs.size() > 1) held.name.clear();  // dots in the run's colour
    if (!held.x.empty()) chart.series.push_back(std::move(held));
  }
  if (std::ranges::any_of(chart.series, &Series::points)) chart.title += " (dots: validation)";
  return line_chart(chart);
}

std::string throughput_chart(std::span<const RunRecord> runs) {
  XyChart chart{.title = "Throughput", .x = {.label = "step"}, .y = {.label = "tokens/s"}};
  chart.from_zero = true;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    add_curve(chart, runs[i], static_cast<int>(i),
              column(runs[i], [](const StepRecord& step) { return step.tokens_per_s; }));
  }
  return line_chart(chart);
}

BarChart bars_of_runs(std::span<const RunRecord> runs) {
  BarChart chart;
  chart.stacked = true;
  for (const RunRecord& run : runs) chart.rows.push_back(run.name);
  return chart;
}

std::string time_chart(std::span<const RunRecord> runs) {
  BarChart chart = bars_of_runs(runs);
  chart.title = "Time of a step";
  chart.value.label = "ms";
  chart.series = {{"computing and the rest", {}}, {"waits for data", {}}, {"bubble", {}}};
  for (const RunRecord& run : runs) {
    const TypicalStep typical = typical_step(run);
    const double waits = typical.exposed_comm_ms, bubble = typical.bubble_ms;
    chart.series[0].values.push_back(std::max(typical.step_ms - waits - bubble, 0.0));
    chart.series[1].values.push_back(waits);
    chart.series[2].values.push_back(bubble);
  }
  return bar_chart(chart);
}

// 2^20 or 2^30 bytes, as the largest needs.
struct ByteUnit {
  double bytes;
  std::string name;
};
ByteUnit unit_for(double largest) {
  if (largest >= 1024.0 * 1024 * 1024) return {1024.0 * 1024 * 1024, "GiB"};
  if (largest >= 1024.0 * 1024) return {1024.0 * 1024, "MiB"};
  return {1024.0, "KiB"};
}

double total_of(const StepRecord& step) {
  double sum = 0;
  for (const auto& [category, bytes] : step.peak_bytes) sum += bytes;
  return sum;
}

const StepRecord& fullest_step(const RunRecord& run) {
  return *std::ranges::max_element(run.steps, {}, total_of);
}

// In the order in which they are allocated; others, should there be any, behind.
std::vector<std::string> categories_of(std::span<const RunRecord> runs) {
  std::vector<std::string> names = {"params",      "grads",   "optimizer",
                                    "activations", "buffers", "transient"};
  for (const RunRecord& run : runs) {
    for (const auto& [category, bytes] : run.steps.back().peak_bytes) {
      if (std::ranges::find(names, category) == names.end()) names.push_back(category);
    }
  }
  return names;
}

double value_or_zero(const std::map<std::string, double>& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? 0.0 : found->second;
}

std::string memory_chart(std::span<const RunRecord> runs) {
  BarChart chart = bars_of_runs(runs);
  double largest = 0;
  for (const RunRecord& run : runs) largest = std::max(largest, peak_bytes(run));
  const ByteUnit unit = unit_for(largest);
  chart.title = "Memory of the fullest rank at its peak";
  chart.value.label = unit.name;
  for (const std::string& category : categories_of(runs)) {
    Bars bars{category, {}};
    for (const RunRecord& run : runs) {
      bars.values.push_back(value_or_zero(fullest_step(run).peak_bytes, category) / unit.bytes);
    }
    chart.series.push_back(std::move(bars));
  }
  std::erase_if(chart.series, [](const Bars& bars) {
    return std::ranges::all_of(bars.values, [](double value) { return value == 0; });
  });
  return bar_chart(chart);
}

std::string memory_over_steps(const RunRecord& run) {
  const ByteUnit unit = unit_for(peak_bytes(run));
  XyChart chart{
      .title = run.name + ": peak of each step", .x = {.label = "step"}, .y = {.label = unit.name}};
  for (const std::string& category : categories_of({&run, 1})) {
    chart.series.push_back({category, numbers(run), column(run, [&](const StepRecord& step) {
                              return value_or_zero(step.peak_bytes, category) / unit.bytes;
                            })});
  }
  return stacked_area(chart);
}

std::string peaks_chart(std::span<const RunRecord> runs) {
  double largest = 0;
  for (const RunRecord& run : runs) largest = std::max(largest, peak_bytes(run));
  const ByteUnit unit = unit_for(largest);
  XyChart chart{
      .title = "Memory: peak of each step", .x = {.label = "step"}, .y = {.label = unit.name}};
  chart.from_zero = true;
  for (const RunRecord& run : runs) {
    chart.series.push_back({run.name, numbers(run), column(run, [&](const StepRecord& step) {
                              return total_of(step) / unit.bytes;
                            })});
  }
  return line_chart(chart);
}

// A row a run and axis, the axis of control traffic left out: the median step's bytes.
std::string comm_chart(std::span<const RunRecord> runs) {
  struct Row {
    std::string label;
    std::map<std::string, double> sent;
  };
  std::vector<Row> rows;
  std::set<std::string> operations;
  double largest = 0;
  for (const RunRecord& run : runs) {
    for (const auto& [axis, sent] : run.steps[run.steps.size() / 2].sent) {
      double sum = 0;
      for (const auto& [operation, bytes] : sent) {
        if (bytes > 0) operations.insert(operation);
        sum += bytes;
      }
      if (axis == "control" || sum == 0) continue;
      largest = std::max(largest, sum);
      rows.push_back({runs.size() > 1 ? run.name + ", " + axis : axis, sent});
    }
  }
  const ByteUnit unit = unit_for(largest);
  BarChart chart{.title = "Bytes that the busiest rank sends in a step",
                 .value = {.label = unit.name},
                 .stacked = true};
  for (const Row& row : rows) chart.rows.push_back(row.label);
  for (const std::string& operation : operations) {
    Bars bars{operation, {}};
    for (const Row& row : rows) {
      bars.values.push_back(value_or_zero(row.sent, operation) / unit.bytes);
    }
    chart.series.push_back(std::move(bars));
  }
  return rows.empty() ? std::string() : bar_chart(chart);
}

}  // namespace

TypicalStep typical_step(const RunRecord& run) {
  return {median_of(run, &StepRecord::step_ms), median_of(run, &StepRecord::exposed_comm_ms),
          median_of(run, &StepRecord::bubble_ms), median_of(run, &StepRecord::tokens_per_s),
          median_of(run, &StepRecord::mfu)};
}

double last_validation(const RunRecord& run) {
  for (auto step = run.steps.rbegin(); step != run.steps.rend(); ++step) {
    if (std::isfinite(step->validation_loss)) return step->validation_loss;
  }
  return kAbsent;
}

double peak_bytes(const RunRecord& run) { return total_of(fullest_step(run)); }

std::vector<Section> run_sections(std::span<const RunRecord> runs) {
  std::vector<Section> sections = {
      {"Learning and speed", {loss_chart(runs), throughput_chart(runs)}},
      {"Time and memory", {time_chart(runs), memory_chart(runs)}}};
  Section rest{"Communication by axis", {}};
  if (std::string chart = comm_chart(runs); !chart.empty()) rest.charts.push_back(chart);
  if (rest.charts.empty()) rest.title = "Memory by step";
  rest.charts.push_back(runs.size() > 1 ? peaks_chart(runs) : memory_over_steps(runs[0]));
  sections.push_back(std::move(rest));
  return sections;
}

}  // namespace quatrain
