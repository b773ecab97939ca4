// SPDX-License-Identifier: Apache-2.0
// Lanes of time: a row each, spans as boxes.
#include <fmt/format.h>

#include <algorithm>

#include "quatrain/report/chart.h"
#include "quatrain/report/frame.h"

namespace quatrain {
namespace {

constexpr double kWidth = 940, kLane = 18, kGap = 12;

bool occurs(const LaneChart& chart, int colour) {
  return std::ranges::any_of(chart.lanes, [colour](const Lane& lane) {
    return std::ranges::find(lane.spans, colour, &LaneSpan::colour) != lane.spans.end();
  });
}

}  // namespace

std::string lane_chart(const LaneChart& chart) {
  std::vector<LegendEntry> legend;
  for (int colour = 0; colour < static_cast<int>(chart.colours.size()); ++colour) {
    if (occurs(chart, colour)) {
      legend.push_back({chart.colours[static_cast<std::size_t>(colour)], colour});
    }
  }
  std::vector<double> ends = {0};
  double widest = 0;
  for (const Lane& lane : chart.lanes) {
    widest = std::max(widest, text_width(lane.label));
    for (const LaneSpan& span : lane.spans) ends.push_back(span.end);
  }
  const double latest = *std::max_element(ends.begin(), ends.end());
  Scale scale(ChartAxis{.label = chart.unit, .from = 0.0, .to = latest}, ends, true);
  scale.set_pixels(widest + 10, kWidth - 20);
  double y = head_height(legend, kWidth) + 4;
  std::vector<double> tops;
  for (const Lane& lane : chart.lanes) {
    if (lane.gap_above) y += kGap;
    tops.push_back(y);
    y += kLane + 3;
  }
  SvgWriter svg(kWidth, y + 36, chart.title);
  draw_head(svg, chart.title, legend, kWidth);
  for (std::size_t i = 0; i < chart.lanes.size(); ++i) {
    const Lane& lane = chart.lanes[i];
    svg.text({widest + 4, tops[i] + 13}, lane.label, "end muted");
    svg.rect({scale.at(0), tops[i], scale.at(latest) - scale.at(0), kLane}, "track");
    for (const LaneSpan& span : lane.spans) {
      const double left = scale.at(span.begin), width = scale.at(span.end) - left;
      svg.rect({left, tops[i], std::max(width - 0.4, 0.4), kLane}, fill(span.colour),
               fmt::format("{}: {} to {} {}", span.text, compact(span.begin), compact(span.end),
                           chart.unit));
      if (text_width(span.text) > width) continue;
      svg.text({left + width / 2, tops[i] + 13}, span.text, "middle small on");
    }
  }
  for (const Scale::Mark& mark : scale.marks()) {
    svg.line({scale.at(mark.value), y}, {scale.at(mark.value), y + 4}, "axis");
    svg.text({scale.at(mark.value), y + 17}, mark.text, "middle muted");
  }
  svg.text({scale.at(latest / 2), y + 31}, chart.unit, "middle muted");
  return svg.finish();
}

}  // namespace quatrain
