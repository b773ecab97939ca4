// SPDX-License-Identifier: Apache-2.0
#include "quatrain/report/chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>

#include "quatrain/base/error.h"
#include "quatrain/report/svg.h"

namespace quatrain {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

// Numbers of an attribute, in order.
std::vector<double> attribute(const std::string& svg, const std::string& pattern) {
  std::vector<double> values;
  const std::regex number(pattern);
  for (std::sregex_iterator at(svg.begin(), svg.end(), number), end; at != end; ++at) {
    values.push_back(std::stod((*at)[1]));
  }
  return values;
}

XyChart two_lines() {
  XyChart chart{.title = "Loss", .x = {.label = "step"}, .y = {.label = "nats"}};
  chart.series = {{"a", {1, 2, 3}, {3, 2, 1}}, {"b <1>", {1, 2, 3}, {3, NAN, 2}}};
  return chart;
}

TEST(ChartTest, LinesHaveLegendAxesAndGaps) {
  const std::string svg = line_chart(two_lines());
  EXPECT_THAT(svg, HasSubstr("b &lt;1&gt;"));
  EXPECT_THAT(svg, HasSubstr("nats"));
  EXPECT_THAT(svg, HasSubstr("stroke s1"));
  EXPECT_EQ(count(svg, "<path"), 2);
  EXPECT_EQ(count(svg, "<circle"), 5);  // the one that is not finite is left out
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(ChartTest, LargerValuesAreHigher) {
  XyChart chart{.series = {{"a", {1, 2, 3}, {1, 5, 3}}}};
  const std::vector<double> y = attribute(scatter(chart), "cy=\"([0-9.]+)\"");
  ASSERT_EQ(y.size(), 3U);
  EXPECT_GT(y[0], y[2]);
  EXPECT_GT(y[2], y[1]);
  const std::vector<double> x = attribute(scatter(chart), "cx=\"([0-9.]+)\"");
  EXPECT_LT(x[0], x[1]);
}

TEST(ChartTest, AreasLieOnEachOther) {
  XyChart chart{.series = {{"low", {0, 1}, {1, 1}}, {"high", {0, 1}, {3, 3}}}};
  const std::string svg = stacked_area(chart);
  EXPECT_EQ(count(svg, "area f"), 2);
  EXPECT_THAT(svg, HasSubstr(">4</text>"));  // the axis reaches the sum
  chart.series[1].y.pop_back();
  EXPECT_THROW(stacked_area(chart), BugError);
}

TEST(ChartTest, StackedBarsEndWhereTheirSumIs) {
  BarChart chart{.rows = {"r0", "r1"}, .series = {{"a", {1, 2}}, {"b", {3, NAN}}}, .stacked = true};
  const std::string svg = bar_chart(chart);
  const std::vector<double> widths =
      attribute(svg, "width=\"([0-9.]+)\" height=\"14.0\" class=\"f");
  ASSERT_EQ(widths.size(), 4U);
  EXPECT_NEAR(widths[1], 3 * widths[0], 0.2);  // r0: 1 and 3
  EXPECT_NEAR(widths[2], 2 * widths[0], 0.2);  // r1: 2 and nothing
  EXPECT_EQ(widths[3], 0);
  chart.rows.push_back("r2");
  EXPECT_THROW(bar_chart(chart), BugError);
}

TEST(ChartTest, CellsAreStrongerWhereValuesAreLarger) {
  const HeatMap map{.columns = {"c0", "c1"}, .rows = {"r0", "r1"}, .values = {{1, 2}, {NAN, 4}}};
  const std::vector<double> strength = attribute(heat_map(map), "fill-opacity=\"([0-9.]+)\"");
  ASSERT_EQ(strength.size(), 3U);
  EXPECT_LT(strength[0], strength[1]);
  EXPECT_LT(strength[1], strength[2]);
}

TEST(ChartTest, LanesCoverTheirTime) {
  const LaneChart chart{.title = "step",
                        .colours = {"forward", "waits"},
                        .lanes = {{"rank 0", {{0, 5, 0, "0F0"}, {5, 10, 1, "0B0"}}}}};
  const std::string svg = lane_chart(chart);
  const std::vector<double> widths = attribute(svg, "width=\"([0-9.]+)\" height=\"18.0\"");
  ASSERT_EQ(widths.size(), 3U);  // the track and two spans
  EXPECT_NEAR(widths[1], widths[0] / 2, 0.5);
  EXPECT_THAT(svg, HasSubstr("0F0: 0 to 5 ms"));
}

TEST(ChartTest, ChartsOfNothingAreStillCharts) {
  for (const std::string& svg : {line_chart({}), scatter({}), stacked_area({}), bar_chart({}),
                                 heat_map({}), lane_chart({})}) {
    EXPECT_THAT(svg, HasSubstr("</svg>"));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
}

TEST(ChartTest, AFileOfItsOwnCarriesItsStyle) {
  const std::string svg = standalone(line_chart(two_lines()));
  EXPECT_TRUE(svg.starts_with("<svg "));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(svg, Not(HasSubstr("href")));  // nothing is fetched
}

TEST(ChartTest, ControlCharactersAndMarkupAreHarmless) {
  EXPECT_EQ(escaped("a<b>&\"c\x01"), "a&lt;b&gt;&amp;&quot;c ");
}

}  // namespace
}  // namespace quatrain
