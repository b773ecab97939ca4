// SPDX-License-Identifier: Apache-2.0
// A table whose cells are as strong as their values are large.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "quatrain/base/check.h"
#include "quatrain/report/chart.h"
#include "quatrain/report/frame.h"

namespace quatrain {
namespace {

constexpr double kCellHeight = 26;

struct Range {
  double least = std::numeric_limits<double>::infinity(), most = -least;
  double strength(double value) const {
    return most > least ? (value - least) / (most - least) : 0.5;
  }
};

Range range_of(const HeatMap& map) {
  Range range;
  CHECK(map.values.size() == map.rows.size(), "{} rows of {}", map.values.size(), map.rows.size());
  for (const std::vector<double>& row : map.values) {
    CHECK(row.size() == map.columns.size(), "{} cells of {}", row.size(), map.columns.size());
    for (const double value : row) {
      if (!std::isfinite(value)) continue;
      range.least = std::min(range.least, value);
      range.most = std::max(range.most, value);
    }
  }
  return range;
}

}  // namespace

std::string heat_map(const HeatMap& map) {
  const Range range = range_of(map);
  double widest = 0;
  for (const std::string& row : map.rows) widest = std::max(widest, text_width(row));
  const double left = widest + 32, top = head_height({}, kChartWidth) + 4;
  const double cell =
      (kChartWidth - left - 4) / static_cast<double>(std::max<std::size_t>(map.columns.size(), 1));
  const double bottom = top + kCellHeight * static_cast<double>(map.rows.size());
  SvgWriter svg(kChartWidth, bottom + 40, map.title);
  draw_head(svg, map.title, {}, kChartWidth);
  for (std::size_t r = 0; r < map.rows.size(); ++r) {
    const double y = top + kCellHeight * static_cast<double>(r);
    svg.text({left - 6, y + 17}, map.rows[r], "end muted");
    for (std::size_t c = 0; c < map.columns.size(); ++c) {
      const double value = map.values[r][c], x = left + cell * static_cast<double>(c);
      if (!std::isfinite(value)) {
        svg.text({x + cell / 2, y + 17}, "-", "middle muted");
        continue;
      }
      const double strength = range.strength(value);
      svg.cell({x + 1, y + 1, cell - 2, kCellHeight - 2}, strength,
               fmt::format("{}, {}: {}", map.rows[r], map.columns[c], compact(value)));
      if (text_width(compact(value)) > cell) continue;
      svg.text({x + cell / 2, y + 17}, compact(value),
               strength > 0.5 ? "middle on-heat" : "middle");
    }
  }
  for (std::size_t c = 0; c < map.columns.size(); ++c) {
    svg.text({left + cell * (static_cast<double>(c) + 0.5), bottom + 15}, map.columns[c],
             "middle muted");
  }
  svg.text({(left + kChartWidth) / 2, bottom + 32}, map.x_label, "middle muted");
  svg.upward_text({12, (top + bottom) / 2}, map.y_label, "muted");
  return svg.finish();
}

}  // namespace quatrain
