// SPDX-License-Identifier: Apache-2.0
// See resume.h.
#include "apps/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "apps/agreed.h"
#include "apps/saver.h"
#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/exchange.h"
#include "quatrain/checkpoint/load.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/engine/saved_state.h"

namespace quatrain::apps {
namespace fs = std::filesystem;
namespace {

bool is_checkpoint(const fs::path& folder) { return fs::exists(folder / kManifestName); }

// The checkpoint that a path means: itself, or the newest of a run or of a folder of checkpoints.
fs::path checkpoint_at(FileSystem& files, const fs::path& path) {
  if (!fs::exists(path)) {
    throw ConfigError(
        fmt::format("checkpoint.resume = \"{}\": there is no such folder", path.string()));
  }
  if (is_checkpoint(path)) return path;
  for (const fs::path& folder : {path, path / "checkpoints"}) {
    const std::vector<std::int64_t> steps = list_steps(files, folder);
    if (!steps.empty()) return folder / step_folder_name(steps.front());
  }
  throw DataError(
      fmt::format("checkpoint.resume = \"{}\": no checkpoint is there; if_present would "
                  "begin where none is",
                  path.string()));
}

// Newer steps of another past would be taken for this run's.
void refuse_newer(FileSystem& files, const fs::path& checkpoint) {
  const auto step = step_from_folder_name(checkpoint.filename().string());
  std::vector<std::int64_t> newer = list_steps(files, checkpoint.parent_path());
  std::erase_if(newer, [&](std::int64_t other) { return !step || other <= *step; });
  if (newer.empty()) return;
  throw ConfigError(fmt::format(
      "checkpoint.resume = \"{}\": {} holds newer checkpoints (step {}), which would stand beside "
      "what this run makes; remove them, or give another run.folder",
      checkpoint.string(), checkpoint.parent_path().string(), join(newer, ", ")));
}

std::optional<ResumePoint> look(const RunConfig& config, FileSystem& files) {
  const std::string& resume = config.checkpoint.resume;
  const fs::path own = checkpoints_of(config);
  if (resume == "never") return std::nullopt;
  if (resume == "if_present") {
    if (list_steps(files, own).empty()) return std::nullopt;
    return ResumePoint{own, true, true};
  }
  ResumePoint point{checkpoint_at(files, resume)};
  std::error_code none;
  point.same_run = fs::equivalent(point.path.parent_path(), own, none);
  if (point.same_run) refuse_newer(files, point.path);
  return point;
}

struct Source {
  std::string path;
  std::int64_t tokens;
};
std::vector<Source> sources_in(const std::string& text) {
  std::vector<Source> sources;
  for (const nlohmann::json& entry : nlohmann::json::parse(text))
    sources.push_back({entry.at(0), entry.at(1)});
  return sources;
}

// A sample is a place in the shuffled epochs of one source: another number of them is another
// order.
void check_data(const std::string& saved, const std::string& own) {
  const std::vector<Source> before = sources_in(saved);
  const std::vector<Source> now = sources_in(own);
  for (std::size_t i = 0; i < std::min(before.size(), now.size()); ++i) {
    if (before[i].tokens == now[i].tokens) continue;
    throw ConfigError(fmt::format(
        "data.train[{}] {} holds {} tokens, the checkpoint's run read {} with {}: samples would "
        "come "
        "again or be left out; add new data as a source of its own, at the end",
        i, now[i].path, with_commas(now[i].tokens), before[i].path, with_commas(before[i].tokens)));
  }
}

using Keys = std::map<std::string, std::string>;

// "section.key" to its value, of a resolved configuration.
Keys keys_of(const std::string& toml) {
  Keys keys;
  std::istringstream lines(toml);
  std::string section;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    if (line.starts_with('[')) section = line.substr(1, line.find(']') - 1);
    if (equals != std::string::npos) {
      keys[section + "." + line.substr(0, equals)] = line.substr(equals + 3);
    }
  }
  return keys;
}

std::string value_in(const Keys& keys, const std::string& key) {
  const auto found = keys.find(key);
  return found == keys.end() ? "nothing" : found->second;
}

// Where a sample begins and which one comes next are functions of these.
void check_order(const TrainingState& state, const RunConfig& config) {
  const std::string advice =
      "; to begin anew with its weights alone: model.weights = that checkpoint";
  if (state.seed != config.run.seed) {
    throw ConfigError(
        fmt::format("run.seed = {}, the checkpoint's run had {}: data would come in "
                    "another order{}",
                    config.run.seed, state.seed, advice));
  }
  const auto saved = state.extra.find(kConfigEntry);
  if (saved == state.extra.end()) return;
  const std::string key = "training.seq_len";
  const std::string before = value_in(keys_of(saved->second), key);
  if (before != std::to_string(config.training.seq_len)) {
    throw ConfigError(
        fmt::format("{} = {}, the checkpoint's run had {}: samples would begin "
                    "elsewhere{}",
                    key, config.training.seq_len, before, advice));
  }
}

TrainingState load(const ResumePoint& point, FileSystem& files, RankJob& job, Communicator& world) {
  const std::vector<HeldPiece> pieces = state_pieces(job.units, *job.optimizer);
  if (!point.newest) return load_checkpoint(files, world, point.path, pieces);
  std::optional<TrainingState> state = load_newest(files, world, point.path, pieces);
  if (state) return std::move(*state);
  throw StorageError(
      fmt::format("the checkpoints in {} went away while they were read", point.path.string()));
}

}  // namespace

std::optional<ResumePoint> find_resume_point(const RunConfig& config, FileSystem& files,
                                             Communicator& world) {
  std::optional<ResumePoint> point;
  agreed([&] {
    std::string found;
    raise(first_failure(
        world, attempt([&] {
          if (world.rank() != 0) return;
          if (const auto seen = look(config, files)) {
            found = nlohmann::json{seen->path.string(), seen->newest, seen->same_run}.dump();
          }
        })));
    found = text_of_first(world, found);
    if (found.empty()) return;
    const nlohmann::json parts = nlohmann::json::parse(found);
    point = ResumePoint{parts[0].get<std::string>(), parts[1], parts[2]};
  });
  return point;
}

TrainingState resume(const ResumePoint& point, const RunConfig& config, const std::string& data,
                     FileSystem& files, RankJob& job, Communicator& world) {
  TrainingState state;
  agreed([&] {
    state = load(point, files, job, world);
    check_order(state, config);
    const auto saved = state.extra.find(kDataEntry);
    if (saved != state.extra.end()) check_data(saved->second, data);
    take_up(job.units, *job.optimizer, state);
    take_up_router_loads(state, config.model, job.executor);
  });
  return state;
}

std::string changes_since(const TrainingState& state, const RunConfig& config) {
  const auto saved = state.extra.find(kConfigEntry);
  if (saved == state.extra.end()) return "";
  const Keys before = keys_of(saved->second);
  const Keys now = keys_of(to_toml(config));
  std::string text;
  Keys all = before;
  all.insert(now.begin(), now.end());
  for (const auto& [key, value] : all) {
    const bool of_place = key.starts_with("run.") || key.starts_with("checkpoint.");
    const std::string old = value_in(before, key);
    const std::string current = value_in(now, key);
    if (!of_place && old != current) text += fmt::format("  {}  {} -> {}\n", key, old, current);
  }
  return text;
}

}  // namespace quatrain::apps
