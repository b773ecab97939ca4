// SPDX-License-Identifier: Apache-2.0
// Horizontal bars: names of any length stay legible.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quatrain/base/check.h"
#include "quatrain/report/chart.h"
#include "quatrain/report/frame.h"

namespace quatrain {
namespace {

constexpr double kBar = 14, kBetweenRows = 9, kWidestLabel = 170;

std::vector<LegendEntry> legend_of(const BarChart& chart) {
  std::vector<LegendEntry> legend;
  for (const Bars& bars : chart.series) {
    legend.push_back({bars.name, static_cast<int>(legend.size())});
  }
  return legend.size() > 1 ? legend : std::vector<LegendEntry>{};
}

double value_of(const BarChart& chart, std::size_t series, std::size_t row) {
  const double value = chart.series[series].values[row];
  return std::isfinite(value) ? value : 0.0;
}

double sum_of(const BarChart& chart, std::size_t row) {
  double sum = 0;
  for (std::size_t s = 0; s < chart.series.size(); ++s) sum += value_of(chart, s, row);
  return sum;
}

class Drawing {
 public:
  explicit Drawing(const BarChart& chart)
      : chart_(chart), legend_(legend_of(chart)), scale_(scale_of(chart)) {
    double widest = 0;
    for (const std::string& row : chart.rows) widest = std::max(widest, text_width(row));
    left_ = std::min(widest, kWidestLabel) + 10;
    top_ = head_height(legend_, kChartWidth) + 6;
    row_ =
        kBar *
        (chart.stacked ? 1.0 : static_cast<double>(std::max<std::size_t>(chart.series.size(), 1)));
    const double room = 8 + text_width("1,234.5");  // for the number behind the longest bar
    scale_.set_pixels(left_, kChartWidth - room);
  }

  std::string text() {
    const double bottom = top_ + static_cast<double>(chart_.rows.size()) * (row_ + kBetweenRows);
    SvgWriter svg(kChartWidth, bottom + 40, chart_.title);
    draw_head(svg, chart_.title, legend_, kChartWidth);
    axis(svg, bottom);
    for (std::size_t row = 0; row < chart_.rows.size(); ++row) {
      const double y = top_ + static_cast<double>(row) * (row_ + kBetweenRows);
      svg.text({left_ - 6, y + row_ / 2 + 4}, shortened(chart_.rows[row]), "end");
      chart_.stacked ? stack(svg, row, y) : beside(svg, row, y);
    }
    return svg.finish();
  }

 private:
  static Scale scale_of(const BarChart& chart) {
    std::vector<double> values;
    for (std::size_t row = 0; row < chart.rows.size(); ++row) {
      if (chart.stacked) values.push_back(sum_of(chart, row));
      for (std::size_t s = 0; s < chart.series.size(); ++s) {
        CHECK(chart.series[s].values.size() == chart.rows.size(), "{} has {} rows of {}",
              chart.series[s].name, chart.series[s].values.size(), chart.rows.size());
        values.push_back(value_of(chart, s, row));
      }
    }
    return Scale(chart.value, values, true);
  }

  static std::string shortened(const std::string& label) {
    const auto most = static_cast<std::size_t>(kWidestLabel / text_width("m"));
    return label.size() <= most ? label : label.substr(0, most - 2) + "..";
  }

  void axis(SvgWriter& svg, double bottom) const {
    for (const Scale::Mark& mark : scale_.marks()) {
      svg.line({scale_.at(mark.value), top_ - 2}, {scale_.at(mark.value), bottom}, "grid");
      svg.text({scale_.at(mark.value), bottom + 14}, mark.text, "middle muted");
    }
    svg.text({(scale_.at(scale_.from()) + scale_.at(scale_.to())) / 2, bottom + 31},
             chart_.value.label, "middle muted");
  }

  std::string tip(std::size_t series, std::size_t row) const {
    return fmt::format("{}, {}: {} {}", chart_.rows[row], chart_.series[series].name,
                       compact(value_of(chart_, series, row)), chart_.value.label);
  }

  void stack(SvgWriter& svg, std::size_t row, double y) const {
    double from = 0;
    for (std::size_t s = 0; s < chart_.series.size(); ++s) {
      const double to = from + value_of(chart_, s, row);
      const double left = scale_.at(from);
      svg.rect({left, y, std::max(scale_.at(to) - left, 0.0), kBar}, fill(static_cast<int>(s)),
               tip(s, row));
      from = to;
    }
    svg.text({scale_.at(from) + 5, y + 11}, compact(from), "muted");
  }

  void beside(SvgWriter& svg, std::size_t row, double y) const {
    for (std::size_t s = 0; s < chart_.series.size(); ++s, y += kBar) {
      const double value = value_of(chart_, s, row);
      const double a = scale_.at(std::min(0.0, value)), b = scale_.at(std::max(0.0, value));
      svg.rect({a, y + 1, b - a, kBar - 2}, fill(static_cast<int>(s)), tip(s, row));
      svg.text({b + 5, y + 11}, compact(value), "muted");
    }
  }

  const BarChart& chart_;
  std::vector<LegendEntry> legend_;
  Scale scale_;
  double left_ = 0, top_ = 0, row_ = 0;
};

}  // namespace

std::string bar_chart(const BarChart& chart) { return Drawing(chart).text(); }

}  // namespace quatrain
