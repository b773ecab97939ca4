// SPDX-License-Identifier: Apache-2.0
// Charts over two numeric axes: lines, points, stacked areas.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "quatrain/base/check.h"
#include "quatrain/report/chart.h"
#include "quatrain/report/frame.h"

namespace quatrain {
namespace {

int colour_of(const XyChart& chart, std::size_t i) {
  return chart.series[i].colour < 0 ? static_cast<int>(i) : chart.series[i].colour;
}

// One series needs no legend: the title names it.
std::vector<LegendEntry> legend_of(const XyChart& chart) {
  std::vector<LegendEntry> legend;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    if (!series.faint && !series.name.empty()) legend.push_back({series.name, colour_of(chart, i)});
  }
  return legend.size() > 1 ? legend : std::vector<LegendEntry>{};
}

struct Values {
  std::vector<double> x, y;
};
Values all_values(const XyChart& chart) {
  Values all;
  for (const Series& series : chart.series) {
    CHECK(series.x.size() == series.y.size(), "{}: {} x and {} y", series.name, series.x.size(),
          series.y.size());
    all.x.insert(all.x.end(), series.x.begin(), series.x.end());
    all.y.insert(all.y.end(), series.y.begin(), series.y.end());
  }
  if (chart.diagonal) {  // both axes alike
    all.x.insert(all.x.end(), all.y.begin(), all.y.end());
    all.y = all.x;
  }
  return all;
}

Frame frame_of(const XyChart& chart, const Values& values) {
  const std::vector<LegendEntry> legend = legend_of(chart);
  return {Scale(chart.x, values.x), Scale(chart.y, values.y, chart.from_zero),
          head_height(legend, kChartWidth)};
}

// Pieces between gaps, as commands of a path.
std::string path_of(const Series& series, const Frame& frame) {
  std::string commands;
  bool pen = false;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    const bool shown = frame.x.shows(series.x[i]) && frame.y.shows(series.y[i]);
    if (shown) {
      fmt::format_to(std::back_inserter(commands), "{}{:.1f} {:.1f}", pen ? "L" : "M",
                     frame.x.at(series.x[i]), frame.y.at(series.y[i]));
    }
    pen = shown;
  }
  return commands;
}

std::string tip_of(const XyChart& chart, const Series& series, std::size_t i) {
  return fmt::format("{}: {} = {}, {} = {}", series.name, chart.x.label, compact(series.x[i]),
                     chart.y.label, compact(series.y[i]));
}

void draw_points(SvgWriter& svg, const XyChart& chart, std::size_t of, const Frame& frame) {
  const Series& series = chart.series[of];
  const double radius = series.x.size() > 60 ? 2.5 : 3.5;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!frame.x.shows(series.x[i]) || !frame.y.shows(series.y[i])) continue;
    svg.circle({frame.x.at(series.x[i]), frame.y.at(series.y[i])}, radius,
               "dot " + fill(colour_of(chart, of)), tip_of(chart, series, i));
  }
}

std::string drawn(const XyChart& chart) {
  const Frame frame = frame_of(chart, all_values(chart));
  SvgWriter svg(kChartWidth, frame.height(), chart.title);
  draw_head(svg, chart.title, legend_of(chart), kChartWidth);
  frame.draw(svg, chart.x.label, chart.y.label);
  if (chart.diagonal) {
    const double low = std::max(frame.x.from(), frame.y.from());
    const double high = std::min(frame.x.to(), frame.y.to());
    svg.line({frame.x.at(low), frame.y.at(low)}, {frame.x.at(high), frame.y.at(high)}, "guide");
  }
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    if (series.points) {
      draw_points(svg, chart, i, frame);
    } else {
      svg.path(path_of(series, frame), fmt::format("stroke {}{}", stroke(colour_of(chart, i)),
                                                   series.faint ? " faint" : ""));
      if (!series.faint && series.x.size() <= 12) draw_points(svg, chart, i, frame);
    }
  }
  return svg.finish();
}

// Each series raised by those below it.
std::vector<Series> raised(const XyChart& chart) {
  std::vector<Series> result = chart.series;
  for (std::size_t s = 1; s < result.size(); ++s) {
    CHECK(result[s].y.size() == result[0].y.size(), "{} has other x", result[s].name);
    for (std::size_t i = 0; i < result[s].y.size(); ++i) result[s].y[i] += result[s - 1].y[i];
  }
  return result;
}

std::string area(const Series& upper, const Series* lower, const Frame& frame) {
  std::string commands = path_of(upper, frame);
  for (std::size_t i = upper.x.size(); i-- > 0;) {
    const double y = lower ? lower->y[i] : 0.0;
    fmt::format_to(std::back_inserter(commands), "L{:.1f} {:.1f}", frame.x.at(upper.x[i]),
                   frame.y.at(y));
  }
  return commands + "Z";
}

}  // namespace

std::string line_chart(const XyChart& chart) { return drawn(chart); }

std::string scatter(const XyChart& chart) {
  XyChart points = chart;
  for (Series& series : points.series) series.points = true;
  return drawn(points);
}

std::string stacked_area(const XyChart& chart) {
  XyChart stacked = chart;
  stacked.series = raised(chart);
  stacked.from_zero = true;
  const Frame frame = frame_of(stacked, all_values(stacked));
  SvgWriter svg(kChartWidth, frame.height(), chart.title);
  draw_head(svg, chart.title, legend_of(stacked), kChartWidth);
  frame.draw(svg, chart.x.label, chart.y.label);
  for (std::size_t i = 0; i < stacked.series.size(); ++i) {
    const Series* lower = i > 0 ? &stacked.series[i - 1] : nullptr;
    if (stacked.series[i].x.empty()) continue;
    svg.path(area(stacked.series[i], lower, frame), "area " + fill(colour_of(stacked, i)));
  }
  return svg.finish();
}

}  // namespace quatrain
