// SPDX-License-Identifier: Apache-2.0
// Charts as SVG, each sized for a column of a page and legible on a telephone: lines, points,
// stacked areas, bars, heat maps and lanes of time. Values that are not finite leave gaps.
#pragma once
#include <string>
#include <vector>

#include "quatrain/report/scale.h"

namespace quatrain {

struct Series {
  std::string name;
  std::vector<double> x, y;  // as many of each
  int colour = -1;           // -1: by its place
  bool points = false;       // marks without a line
  bool faint = false;        // behind the others, without a name in the legend
};

struct XyChart {
  std::string title = {};
  ChartAxis x = {}, y = {};
  std::vector<Series> series = {};
  bool diagonal = false;  // y = x as a guide: predicted against measured
  bool from_zero = false;
};
std::string line_chart(const XyChart& chart);
std::string scatter(const XyChart& chart);
// The series lie on each other, in their order; all have the first one's x.
std::string stacked_area(const XyChart& chart);

struct Bars {
  std::string name;
  std::vector<double> values;  // [row]
};
// Rows from the top, bars to the right; of several series beside or behind each other.
struct BarChart {
  std::string title = {};
  ChartAxis value = {};
  std::vector<std::string> rows = {};
  std::vector<Bars> series = {};
  bool stacked = false;
};
std::string bar_chart(const BarChart& chart);

struct HeatMap {
  std::string title = {};
  std::string x_label = {}, y_label = {};
  std::vector<std::string> columns = {}, rows = {};
  std::vector<std::vector<double>> values = {};  // [row][column]
};
std::string heat_map(const HeatMap& map);

struct LaneSpan {
  double begin = 0, end = 0;
  int colour = 0;
  std::string text;  // inside where it fits, and under the pointer
};
struct Lane {
  std::string label;
  std::vector<LaneSpan> spans = {};
  bool gap_above = false;
};
struct LaneChart {
  std::string title = {};
  std::string unit = "ms";                // of begin and end
  std::vector<std::string> colours = {};  // names for the legend
  std::vector<Lane> lanes = {};
};
// Wider than the others: it scrolls in its box.
std::string lane_chart(const LaneChart& chart);

}  // namespace quatrain
