// SPDX-License-Identifier: Apache-2.0
// See frame.h.
#include "quatrain/report/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace quatrain {
namespace {

constexpr double kTitle = 26, kLegendRow = 18, kSwatch = 16, kBelow = 40;

// Of each entry, its place below the title.
std::vector<SvgPoint> legend_places(std::span<const LegendEntry> legend, double width) {
  std::vector<SvgPoint> places;
  SvgPoint at{2, kTitle + 8};
  for (const LegendEntry& entry : legend) {
    const double needs = kSwatch + text_width(entry.name) + 12;
    if (at.x > 2 && at.x + needs > width) at = {2, at.y + kLegendRow};
    places.push_back(at);
    at.x += needs;
  }
  return places;
}

}  // namespace

std::string fill(int colour) { return fmt::format("f{}", colour % kNumColours); }
std::string stroke(int colour) { return fmt::format("s{}", colour % kNumColours); }

double head_height(std::span<const LegendEntry> legend, double width) {
  const std::vector<SvgPoint> places = legend_places(legend, width);
  return places.empty() ? kTitle + 4 : places.back().y + 14;
}

void draw_head(SvgWriter& svg, std::string_view title, std::span<const LegendEntry> legend,
               double width) {
  svg.text({2, 16}, title, "title");
  const std::vector<SvgPoint> places = legend_places(legend, width);
  for (std::size_t i = 0; i < legend.size(); ++i) {
    const SvgPoint at = places[i];
    svg.rect({at.x, at.y - 9, 11, 10}, fill(legend[i].colour));
    svg.text({at.x + kSwatch, at.y}, legend[i].name);
  }
}

Frame::Frame(Scale across, Scale up, double top) : x(std::move(across)), y(std::move(up)) {
  double widest = 0;
  for (const Scale::Mark& mark : y.marks()) widest = std::max(widest, text_width(mark.text));
  const double left = widest + 28;
  plot = {left, top + 6, kChartWidth - left - 16, kPlotHeight};
  x.set_pixels(plot.left, plot.left + plot.width);
  y.set_pixels(plot.top + plot.height, plot.top);
}

double Frame::height() const { return plot.top + plot.height + kBelow; }

void Frame::draw(SvgWriter& svg, std::string_view x_label, std::string_view y_label) const {
  const double right = plot.left + plot.width, bottom = plot.top + plot.height;
  for (const Scale::Mark& mark : y.marks()) {
    svg.line({plot.left, y.at(mark.value)}, {right, y.at(mark.value)}, "grid");
    svg.text({plot.left - 6, y.at(mark.value) + 4}, mark.text, "end muted");
  }
  double free_from = -1e9;  // marks that would run into each other are left without a number
  for (const Scale::Mark& mark : x.marks()) {
    const double at = x.at(mark.value), half = text_width(mark.text) / 2;
    svg.line({at, bottom}, {at, bottom + 4}, "axis");
    if (at - half < free_from) continue;
    svg.text({at, bottom + 17}, mark.text, "middle muted");
    free_from = at + half + 4;
  }
  svg.line({plot.left, bottom}, {right, bottom}, "axis");
  svg.text({plot.left + plot.width / 2, bottom + 33}, x_label, "middle muted");
  svg.upward_text({12, plot.top + plot.height / 2}, y_label, "muted");
}

}  // namespace quatrain
