// SPDX-License-Identifier: Apache-2.0
// See page.h. The page's order is that of questions: did it learn, how fast, where did time, memory
// and bytes go, and what was the plan.
#include "quatrain/report/page.h"

#include <fmt/format.h>

#include <cmath>

#include "quatrain/base/check.h"
#include "quatrain/base/text.h"
#include "quatrain/report/chart.h"
#include "quatrain/report/run_charts.h"
#include "quatrain/report/svg.h"
#include "quatrain/report/timeline.h"

namespace quatrain {
namespace {

constexpr std::string_view kPageStyle = R"(
*{box-sizing:border-box}
body{margin:0 auto;padding:24px 20px 48px;max-width:1060px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:18px;margin:32px 0 10px}
p{margin:4px 0 10px;max-width:72ch}.muted{color:var(--muted)}
.grid{display:grid;gap:16px;align-items:start;
grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
figure{margin:0;padding:12px;background:var(--card);border:1px solid var(--grid);border-radius:8px;
min-width:0}
figure svg{display:block;width:100%;height:auto}
figure.wide{overflow-x:auto;margin-bottom:12px}figure.wide svg{min-width:760px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:5px 12px 5px 0;text-align:right;border-bottom:1px solid var(--grid);
white-space:nowrap}
th{color:var(--muted);font-weight:600}th:nth-child(-n+2),td:nth-child(-n+2){text-align:left}
.swatch{display:inline-block;width:11px;height:11px;border-radius:2px;
margin-right:7px}
ol{padding-left:22px;max-width:90ch}
)";

std::string row(const std::vector<std::string>& cells, std::string_view tag) {
  std::string text = "<tr>";
  for (const std::string& cell : cells) {
    text += fmt::format("<{0}>{1}</{0}>", tag, cell);  // cells are markup already
  }
  return text + "</tr>\n";
}

std::string swatch(std::size_t run) {
  return fmt::format("<span class=\"swatch\" style=\"background:var(--c{})\"></span>",
                     run % kNumColours);
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : "-";
}

std::string loss_text(double loss) {
  return std::isfinite(loss) ? fmt::format("{:.4f}", loss) : "not finite";
}

std::string summary(std::span<const RunRecord> runs) {
  std::string text = "<div class=\"scroll\"><table>\n";
  text += row({"run", "plan", "steps", "loss", "validation", "tokens/s", "MFU", "step", "waiting",
               "bubble", "peak"},
              "th");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const RunRecord& run = runs[i];
    const TypicalStep typical = typical_step(run);
    text += row({swatch(i) + escaped(run.name), escaped(short_text(run.plan)),
                 with_commas(run.steps.back().step), loss_text(run.steps.back().loss),
                 compact(last_validation(run)), compact(typical.tokens_per_s), percent(typical.mfu),
                 fmt::format("{} ms", compact(typical.step_ms)),
                 percent(typical.exposed_comm_ms / typical.step_ms),
                 percent(typical.bubble_ms / typical.step_ms),
                 human_bytes(static_cast<std::int64_t>(peak_bytes(run)))},
                "td");
  }
  return text +
         "</table></div>\n<p class=\"muted\">Times are medians over the steps behind the "
         "first; waiting is for collectives and messages that nothing hides.</p>\n";
}

std::string figure(const std::string& svg, std::string_view style = "") {
  return fmt::format("<figure class=\"{}\">{}</figure>\n", style, svg);
}

std::string timelines(std::span<const RunRecord> runs) {
  std::string text;
  for (const RunRecord& run : runs) {
    const std::optional<StepTimeline> timeline = step_timeline(run);
    if (!timeline) continue;
    text += figure(lane_chart(timeline->chart), "wide");
    text += fmt::format("<p class=\"muted\">{}: {:.1f} ms measured", escaped(run.name),
                        timeline->measured_ms);
    if (timeline->predicted_ms) {
      text += fmt::format(
          ", {:.1f} ms by the schedule's clock with the mean durations of each "
          "stage and free messages",
          *timeline->predicted_ms);
    }
    text += ".</p>\n";
  }
  if (text.empty()) return text;
  return "<h2>Timeline</h2>\n" + text;
}

std::string plan_rows(std::span<const RunRecord> runs) {
  std::string text = "<div class=\"scroll\"><table>\n";
  text += row({"run", "geometry", "schedule", "chunks", "layers from", "micro-batch", "ZeRO",
               "recompute", "dtype", "hash"},
              "th");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const Plan& plan = runs[i].plan;
    std::vector<std::int64_t> begins(plan.stage_begin.begin(), plan.stage_begin.end());
    text += row({swatch(i) + escaped(runs[i].name), escaped(short_text(plan)),
                 escaped(plan.schedule), std::to_string(plan.chunks), join(begins, " "),
                 fmt::format("{} x {} of {} tokens", plan.num_microbatches, plan.microbatch_size,
                             with_commas(plan.seq_len)),
                 std::to_string(plan.zero_stage), std::string(name(plan.recompute)),
                 std::string(name(plan.dtype)), hash(plan)},
                "td");
  }
  return text + "</table></div>\n";
}

std::string reasons(std::span<const RunRecord> runs) {
  std::string text;
  for (const RunRecord& run : runs) {
    if (run.reasons.empty()) continue;
    text += fmt::format("<h3>{}</h3>\n<ol>\n", escaped(run.name));
    for (const std::string& reason : run.reasons) {
      text += fmt::format("<li>{}</li>\n", escaped(reason));
    }
    text += "</ol>\n";
  }
  return text;
}

}  // namespace

std::string report_page(std::span<const RunRecord> runs) {
  CHECK(!runs.empty(), "a page of no runs");
  const std::string title =
      runs.size() == 1 ? runs[0].name : fmt::format("{} runs compared", runs.size());
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{0}</title>\n<style>{1}{2}</style></head><body>\n<h1>{0}</h1>\n",
      escaped(title), chart_style(), kPageStyle);
  text += summary(runs);
  for (const Section& section : run_sections(runs)) {
    text += fmt::format("<h2>{}</h2>\n<div class=\"grid\">\n", section.title);
    for (const std::string& chart : section.charts) text += figure(chart);
    text += "</div>\n";
  }
  text += timelines(runs);
  text += "<h2>Plan</h2>\n" + plan_rows(runs) + reasons(runs);
  return text + "</body></html>\n";
}

}  // namespace quatrain
