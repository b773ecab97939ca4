// SPDX-License-Identifier: Apache-2.0
// How right is the planner? Published runs, each predicted by constants that other models' or other
// hardware's rows gave.
//
//   quatrain_bench_planner --tables DIR [--fit] [--json F] [--residuals F.csv] [--plots DIR]
//   quatrain_bench_planner --lecture DIR [--json F]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/planner/errors.h"
#include "bench/planner/lecture.h"
#include "bench/planner/scaling.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/report/chart.h"
#include "quatrain/report/svg.h"

namespace quatrain::bench {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string tables, json, residuals, plots, lecture;
  std::uint64_t seed = 1;
  bool fit = false;
};

std::map<std::string, std::vector<Judged>> by_table(const std::vector<Judged>& judged) {
  std::map<std::string, std::vector<Judged>> tables;
  for (const Judged& row : judged) tables[row.run->table].push_back(row);
  return tables;
}

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

void add(Table& table, Json& all, const std::string& name, const std::string& quantity,
         const Errors& e) {
  if (e.n == 0) return;
  table.add({name, quantity, std::to_string(e.n), percent(e.median), percent(e.mean),
             percent(e.p90), percent(e.worst), percent(e.bias), e.worst_label});
  all.push_back({{"table", name},
                 {"quantity", quantity},
                 {"n", e.n},
                 {"median", e.median},
                 {"mean", e.mean},
                 {"p90", e.p90},
                 {"worst", e.worst},
                 {"bias", e.bias}});
}

void print_choices(const std::string& name, const std::vector<Judged>& rows, Json& all) {
  const Feasibility fits = feasibility(rows);
  if (fits.right == fits.n && fits.false_fits == 0 && rows.front().run->contest.empty()) return;
  fmt::print("{}: fits or not: {} of {} right ({} %), {} false fits ({} %)\n", name, fits.right,
             fits.n, percent(fits.right / double(fits.n)), fits.false_fits,
             percent(fits.false_fits / double(fits.n)));
  all[name]["feasibility"] = {
      {"n", fits.n}, {"right", fits.right}, {"false_fits", fits.false_fits}};
  const Choices best = choices(rows);
  if (best.contests == 0) return;
  fmt::print(
      "{}: chosen plan within 5 % of the best measured in {} of {} groups, median loss {} "
      "%, median Kendall tau {:.2f}\n",
      name, best.within_5_percent, best.contests, percent(best.median_loss), best.median_tau);
  all[name]["choices"] = {{"groups", best.contests},
                          {"within_5_percent", best.within_5_percent},
                          {"median_loss", best.median_loss},
                          {"median_tau", best.median_tau}};
}

void write_residuals(const std::string& file, const std::vector<Judged>& judged) {
  std::string text =
      "table,row,software,measured_s,predicted_s,measured_gib,predicted_gib,failed,fits,compute,"
      "exposed_tp,exposed_cp,exposed_ep,exposed_dp,exposed_pp,bubble,optimizer\n";
  for (const Judged& row : judged) {
    const StepParts& p = row.prediction.parts;
    text += fmt::format(
        "{},\"{}\",{},{:.5g},{:.5g},{:.4g},{:.4g},{},{},{:.4g},{:.4g},{:.4g},"
        "{:.4g},{:.4g},{:.4g},{:.4g},{:.4g}\n",
        row.run->table, row.run->label, row.run->software, row.run->seconds, row.prediction.seconds,
        row.run->gib, row.prediction.gib, row.run->failed, row.prediction.fits, p.compute,
        p.exposed_tp, p.exposed_cp, p.exposed_ep, p.exposed_dp, p.exposed_pp, p.bubble,
        p.optimizer);
  }
  write_file_atomically(file, text);
}

// Predicted against measured, a colour a group.
std::string plot(const std::string& name, const std::vector<Judged>& rows) {
  XyChart chart{.title = name + ": seconds of a step",
                .x = {.label = "measured", .log = true},
                .y = {.label = "predicted", .log = true}};
  chart.diagonal = true;
  std::map<std::string, Series> groups;
  for (const Judged& row : rows) {
    if (row.run->failed) continue;
    Series& series = groups[row.run->group];
    series.name = row.run->group;
    series.x.push_back(row.run->seconds);
    series.y.push_back(row.prediction.seconds);
  }
  for (auto& [group, series] : groups) chart.series.push_back(std::move(series));
  return standalone(scatter(chart));
}

void write_plots(const std::string& folder, const std::vector<Judged>& judged) {
  std::filesystem::create_directories(folder);
  for (const auto& [name, rows] : by_table(judged)) {
    std::string file;
    for (const char c : name) file += c == ' ' || c == '-' ? '_' : c;
    write_file_atomically(folder + "/" + file + ".svg", plot(name, rows));
  }
}

int print_fit(const std::vector<PublishedRun>& runs) {
  std::vector<const PublishedRun*> all;
  for (const PublishedRun& run : runs) all.push_back(&run);
  Table table({"software on hardware", "rate", "stash"});
  for (const auto& [stack, constants] : fitted(all)) {
    table.add(
        {stack, fmt::format("{:.3f}", constants.rate), fmt::format("{:.2f}", constants.stash)});
  }
  fmt::print("{}", table.to_string());
  return 0;
}

// Values that are not finite become null.
Json document(const Figure& figure) {
  Json curves = Json::array();
  for (const Curve& curve : figure.curves) {
    curves.push_back({{"name", curve.name},
                      {"x", curve.x},
                      {"published", curve.published},
                      {"predicted", curve.predicted}});
  }
  return {{"file", figure.file},
          {"title", figure.title},
          {"x_label", figure.x_label},
          {"y_label", figure.y_label},
          {"curves", curves}};
}

Json document(const Scaling& scaling) {
  Json rows = Json::array();
  for (const ScalingRow& row : scaling.rows) {
    const StepParts& p = row.parts;
    rows.push_back({{"gpus", row.gpus},
                    {"step_s", row.step},
                    {"parts_s",
                     {{"compute", p.compute},
                      {"exposed_tp", p.exposed_tp},
                      {"exposed_dp", p.exposed_dp},
                      {"exposed_pp", p.exposed_pp},
                      {"bubble", p.bubble},
                      {"optimizer", p.optimizer}}}});
  }
  return {{"name", scaling.name}, {"rows", rows}};
}

void print(const Figure& figure) {
  for (const Curve& curve : figure.curves) {
    fmt::print("{}, {}:\n", figure.title, curve.name);
    for (std::size_t i = 0; i < curve.x.size(); ++i) {
      fmt::print("  {:>6}: published {:>8.4g}, predicted {:>8.4g}\n", curve.x[i],
                 curve.published[i], curve.predicted[i]);
    }
  }
}

int draw_lecture(const Options& options) {
  std::filesystem::create_directories(options.lecture);
  Json all = {{"figures", Json::array()}, {"weak_scaling", Json::array()}};
  for (const Figure& figure : lecture_figures()) {
    write_file_atomically(options.lecture + "/" + figure.file + ".svg", svg(figure));
    all["figures"].push_back(document(figure));
    if (figure.file != "roofline") print(figure);
  }
  for (const Scaling& scaling : weak_scaling()) all["weak_scaling"].push_back(document(scaling));
  if (!options.json.empty()) write_file_atomically(options.json, all.dump(2) + "\n");
  return 0;
}

int run(const Options& options) {
  if (!options.lecture.empty()) return draw_lecture(options);
  if (options.tables.empty()) throw ConfigError("--tables or --lecture: what is to be compared");
  const std::vector<PublishedRun> runs = published_runs(options.tables);
  if (runs.empty()) throw ConfigError(options.tables + " holds none of the tables");
  if (options.fit) return print_fit(runs);
  const std::vector<Judged> judged = judged_unseen(runs, options.seed);
  Table table(
      {"table", "of", "n", "median %", "mean %", "p90 %", "worst %", "bias %", "worst row"});
  Json document = {{"seed", options.seed}, {"errors", Json::array()}};
  for (const auto& [name, rows] : by_table(judged)) {
    add(table, document["errors"], name, "step", time_errors(rows));
    add(table, document["errors"], name, "memory", memory_errors(rows));
  }
  fmt::print("{}", table.to_string());
  Json more = Json::object();
  for (const auto& [name, rows] : by_table(judged)) print_choices(name, rows, more);
  document["more"] = more;
  fmt::print("{} of {} rows predicted; no row was in the fit of its constants (seed {})\n",
             judged.size(), runs.size(), options.seed);
  if (!options.json.empty()) write_file_atomically(options.json, document.dump(2) + "\n");
  if (!options.residuals.empty()) write_residuals(options.residuals, judged);
  if (!options.plots.empty()) write_plots(options.plots, judged);
  return 0;
}

}  // namespace
}  // namespace quatrain::bench

int main(int argc, char** argv) {
  CLI::App app("The planner beside published runs.", "quatrain_bench_planner");
  quatrain::bench::Options options;
  app.add_option("--tables", options.tables, "folder of the tables")->envname("QUATRAIN_TABLES");
  app.add_flag("--fit", options.fit, "prints the constants of each stack, from all rows");
  app.add_option("--seed", options.seed, "deals groups into folds")->capture_default_str();
  app.add_option("--json", options.json, "the figures");
  app.add_option("--residuals", options.residuals, "a CSV, a row each");
  app.add_option("--plots", options.plots, "folder for predicted against measured, SVG");
  app.add_option("--lecture", options.lecture, "folder for the literature's charts, SVG");
  CLI11_PARSE(app, argc, argv);
  try {
    return quatrain::bench::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quatrain_bench_planner: %s\n", error.what());
    return 2;
  }
}
