// SPDX-License-Identifier: Apache-2.0
// See sweep_chart.h.
#include "apps/sweep_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/plan_text.h"
#include "quatrain/report/chart.h"
#include "quatrain/report/svg.h"

namespace quatrain::apps {
namespace {

constexpr std::pair<const char*, double StepParts::*> kParts[] = {
    {"compute", &StepParts::compute}, {"tp", &StepParts::exposed_tp},
    {"cp", &StepParts::exposed_cp},   {"ep", &StepParts::exposed_ep},
    {"dp", &StepParts::exposed_dp},   {"pp", &StepParts::exposed_pp},
    {"bubble", &StepParts::bubble},   {"optimizer", &StepParts::optimizer},
    {"other", &StepParts::other}};

}  // namespace

std::string sweep_svg(const Job& job, const std::string& axis, std::span<const SweepPoint> points) {
  BarChart chart;
  chart.title = fmt::format("Best step by {}, {} on {} x {}", axis, job.model.name, job.gpus,
                            job.cluster.name);
  chart.value.label = "seconds";
  chart.stacked = true;
  for (const SweepPoint& point : points) {
    const double rate = tokens_per_second(job, point.plan.estimate) / job.gpus;
    chart.rows.push_back(fmt::format("{}={}: {} tok/s", axis, point.value, compact(rate)));
  }
  for (const auto& [name, part] : kParts) {
    Bars bars{name, {}};
    for (const SweepPoint& point : points) {
      bars.values.push_back(point.plan.estimate.parts.*part);
    }
    if (std::ranges::any_of(bars.values, [](double value) { return value > 0; })) {
      chart.series.push_back(std::move(bars));
    }
  }
  return standalone(bar_chart(chart));
}

}  // namespace quatrain::apps
