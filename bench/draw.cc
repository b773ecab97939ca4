// SPDX-License-Identifier: Apache-2.0
// Draws charts that a script describes:  quatrain_bench_draw CHARTS.json FOLDER
//
// A list of {"file", "title", "x": {"label", "log"}, "y": {"label", "log"},
// "series": [{"name", "x", "y", "points", "colour"}]} for lines, or of
// {"file", "title", "value": {"label"}, "rows", "stacked", "series": [{"name", "values"}]} for
// bars. null is a gap.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "quatrain/base/file.h"
#include "quatrain/report/chart.h"
#include "quatrain/report/svg.h"

namespace quatrain::bench {
namespace {

using Json = nlohmann::json;

std::vector<double> numbers(const Json& values) {
  std::vector<double> result;
  for (const Json& value : values) {
    result.push_back(value.is_null() ? std::numeric_limits<double>::quiet_NaN()
                                     : value.get<double>());
  }
  return result;
}

ChartAxis axis(const Json& chart, const char* key) {
  const Json& of = chart.at(key);
  return {.label = of.at("label").get<std::string>(), .log = of.value("log", false)};
}

std::string lines(const Json& chart) {
  XyChart result{.title = chart.at("title"), .x = axis(chart, "x"), .y = axis(chart, "y")};
  result.from_zero = !result.y.log;
  for (const Json& of : chart.at("series")) {
    result.series.push_back({.name = of.at("name"),
                             .x = numbers(of.at("x")),
                             .y = numbers(of.at("y")),
                             .colour = of.value("colour", -1),
                             .points = of.value("points", false)});
  }
  return line_chart(result);
}

std::string bars(const Json& chart) {
  BarChart result{.title = chart.at("title"),
                  .value = axis(chart, "value"),
                  .rows = chart.at("rows"),
                  .stacked = chart.value("stacked", false)};
  for (const Json& of : chart.at("series")) {
    result.series.push_back({of.at("name"), numbers(of.at("values"))});
  }
  return bar_chart(result);
}

void draw(const std::string& file, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const Json& chart : Json::parse(read_file(file))) {
    const std::string name = chart.at("file");
    write_file_atomically(folder / name,
                          standalone(chart.contains("rows") ? bars(chart) : lines(chart)));
  }
}

}  // namespace
}  // namespace quatrain::bench

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: quatrain_bench_draw CHARTS.json FOLDER\n", stderr);
    return 2;
  }
  try {
    quatrain::bench::draw(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quatrain_bench_draw: %s\n", error.what());
    return 2;
  }
}
