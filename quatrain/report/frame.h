// SPDX-License-Identifier: Apache-2.0
// What charts share: the title, the legend, and axes around a plot.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/report/scale.h"
#include "quatrain/report/svg.h"

namespace quatrain {

inline constexpr double kChartWidth = 400, kPlotHeight = 200;

struct LegendEntry {
  std::string name;
  int colour = 0;
};
// "f3", "s3": fill and stroke of a colour, counted round.
std::string fill(int colour);
std::string stroke(int colour);

// Height that title and legend take.
double head_height(std::span<const LegendEntry> legend, double width);
void draw_head(SvgWriter& svg, std::string_view title, std::span<const LegendEntry> legend,
               double width);

// Two axes around a plot that lies `top` below the chart's upper edge.
struct Frame {
  Scale x, y;
  SvgBox plot;

  Frame(Scale across, Scale up, double top);
  double height() const;  // of the whole chart
  void draw(SvgWriter& svg, std::string_view x_label, std::string_view y_label) const;
};

}  // namespace quatrain
