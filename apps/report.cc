// SPDX-License-Identifier: Apache-2.0
// quatrain report: run folders as one page.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "apps/commands.h"
#include "apps/console.h"
#include "apps/guard.h"
#include "apps/run_reasons.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/report/page.h"

namespace quatrain::apps {
namespace fs = std::filesystem;
namespace {

struct ReportOptions {
  std::vector<std::string> runs;
  std::string out, cluster;
  bool json = false;
};

std::string text_of(const fs::path& file, Problems& problems) {
  if (fs::is_regular_file(file)) return read_file(file);
  problems.push_back({file.string(), "no such file", "a folder that `quatrain train` wrote"});
  return "";
}

RunRecord run_of(const std::string& folder, Problems& problems) {
  const fs::path path = fs::path(folder).lexically_normal();
  if (!fs::is_directory(path)) {
    problems.push_back({folder, "no such folder", "a folder that `quatrain train` wrote"});
    return {};
  }
  const std::size_t before = problems.size();
  RunTexts texts{.folder = (path.has_filename() ? path : path.parent_path()).string(),
                 .metrics = text_of(path / "metrics.jsonl", problems),
                 .plan = text_of(path / "plan.json", problems)};
  if (fs::exists(path / "trace.json")) texts.trace = text_of(path / "trace.json", problems);
  return problems.size() > before ? RunRecord{} : read_run(texts, problems);
}

int report(const ReportOptions& options) {
  Console console(options.json);
  Problems problems;
  std::vector<RunRecord> runs;
  for (const std::string& folder : options.runs) runs.push_back(run_of(folder, problems));
  const fs::path parent = fs::absolute(options.out).parent_path();
  if (!fs::is_directory(parent)) {
    problems.push_back({options.out, fmt::format("there is no folder {}", parent.string()),
                        "make it, or write elsewhere"});
  }
  throw_if_any(problems);
  if (!options.cluster.empty()) {
    const ClusterSpec where = cluster(options.cluster);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      runs[i].reasons = reasons_of(runs[i], options.runs[i], where);
    }
  }
  const std::string page = report_page(runs);
  write_file_atomically(options.out, page);
  console.line(fmt::format("{} of {} {} -> {}", human_bytes(static_cast<std::int64_t>(page.size())),
                           runs.size(), runs.size() == 1 ? "run" : "runs", options.out));
  nlohmann::ordered_json names = nlohmann::ordered_json::array();
  for (const RunRecord& run : runs) names.push_back(run.name);
  console.document({{"out", options.out}, {"bytes", page.size()}, {"runs", names}});
  return kDone;
}

}  // namespace

Registered add_report(CLI::App& app) {
  CLI::App* parser = app.add_subcommand("report", "Run folders as one page of charts");
  auto options = std::make_shared<ReportOptions>();
  parser->add_option("runs", options->runs, "folders that `quatrain train` wrote")->required();
  parser->add_option("--out", options->out, "the page, HTML that needs no network")->required();
  parser->add_option("--cluster", options->cluster,
                     "where they ran, a catalogue entry or TOML: adds what the planner says");
  parser->add_flag("--json", options->json, "one JSON document on stdout, the rest on stderr");
  parser->footer(
      "Example:\n  quatrain report runs/demo runs/longer --out compare.html --cluster this.toml");
  return {parser, [options] { return report(*options); }};
}

}  // namespace quatrain::apps
