// SPDX-License-Identifier: Apache-2.0
// See run_folder.h.
#include "apps/run_folder.h"

#include <fmt/format.h>

#include <sstream>
#include <string>
#include <system_error>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/log.h"

namespace quatrain::apps {
namespace fs = std::filesystem;
namespace {

void keep_earlier_run(const fs::path& folder) {
  if (!fs::exists(folder / "metrics.jsonl") && !fs::exists(folder / "checkpoints")) return;
  for (int n = 1;; ++n) {
    const fs::path kept = folder.string() + "." + std::to_string(n);
    if (fs::exists(kept)) continue;
    fs::rename(folder, kept);
    log_info(fmt::format("the earlier run in {} is kept as {}", folder.string(), kept.string()));
    return;
  }
}

// A line that a crash has cut is one of a later step.
void forget_later_steps(const fs::path& file, std::int64_t step) {
  if (!fs::exists(file)) return;
  std::istringstream lines(read_file(file));
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    const auto parsed = nlohmann::json::parse(line, nullptr, false);
    if (parsed.is_object() && parsed.value("step", step + 1) <= step) kept += line + "\n";
  }
  write_file_atomically(file, kept);
}

}  // namespace

RunFolder::RunFolder(const RunConfig& config, std::optional<std::int64_t> continued)
    : path_(config.run.folder) {
  try {
    if (continued) {
      forget_later_steps(path_ / "metrics.jsonl", *continued);
    } else {
      keep_earlier_run(path_);
    }
    fs::create_directories(path_);
  } catch (const fs::filesystem_error& error) {
    throw StorageError(fmt::format("run folder {}: {}", path_.string(), error.code().message()));
  }
  write_file_atomically(path_ / "config.toml", to_toml(config));
  write_file_atomically(path_ / "plan.json", to_json(make_plan(config)) + "\n");
  metrics_.open(path_ / "metrics.jsonl", std::ios::app);
  if (!metrics_) {
    throw StorageError(fmt::format("cannot write {}", (path_ / "metrics.jsonl").string()));
  }
  log_to_file(path_ / "log.txt");
}

RunFolder::~RunFolder() { log_to_file({}); }

void RunFolder::add_metrics(const nlohmann::ordered_json& line) {
  metrics_ << line.dump() << '\n' << std::flush;
  if (!metrics_) {
    throw StorageError(
        fmt::format("cannot write {}: is the disk full?", (path_ / "metrics.jsonl").string()));
  }
}

}  // namespace quatrain::apps
