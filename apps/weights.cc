// SPDX-License-Identifier: Apache-2.0
// See weights.h.
#include "apps/weights.h"

#include <fmt/format.h>

#include "apps/saver.h"
#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/engine/saved_state.h"
#include "quatrain/hub/hub.h"
#include "quatrain/spec/model_io.h"
#include "quatrain/spec/run_config.h"

namespace quatrain::apps {
namespace fs = std::filesystem;
namespace {

// A unit at a time.
void fill_from_hub(const fs::path& folder, Model& model, ZeroUnits& units) {
  LoadOptions options;
  options.open = [&](ParamUnit& unit) { units.open_values(unit); };
  options.close = [&](ParamUnit& unit) { units.keep_values(unit); };
  load_weights(model, folder, options);
}

// Where the run's tokenizer is gone, the one that an import has carried along: the whole folder may
// have moved.
std::string tokenizer_beside(const fs::path& checkpoint, const std::string& tokenizer) {
  if (tokenizer.empty() || tokenizer == "bytes" || fs::exists(tokenizer)) return tokenizer;
  const fs::path step = fs::absolute(checkpoint / "").parent_path();
  const fs::path carried = step.parent_path() / kCarriedTokenizer;
  return fs::is_directory(carried) ? carried.lexically_normal().string() : tokenizer;
}

}  // namespace

WeightSource find_weight_source(const fs::path& path) {
  if (fs::exists(path / kManifestName)) return {path, true};
  PosixFileSystem files;
  if (!fs::exists(path / "weights")) {
    for (const fs::path& run : {path / "checkpoints", path}) {
      if (list_steps(files, run).empty()) continue;
      if (const auto step = newest_valid(files, run)) return {run / step_folder_name(*step), true};
    }
  }
  return {find_weights(path).weights};
}

std::function<void(Model& model, ZeroUnits& units, Communicator& world)> fill_from(
    const WeightSource& source) {
  return [source](Model& model, ZeroUnits& units, Communicator& world) {
    if (!source.checkpoint) return fill_from_hub(source.folder, model, units);
    PosixFileSystem files;
    load_checkpoint_weights(files, world, source.folder, units);
  };
}

WeightOrigin origin_of(const WeightSource& source) {
  if (!source.checkpoint) return {read_hub_spec(source.folder), source.folder.string()};
  PosixFileSystem files;
  return origin_of(read_manifest(files, source.folder).state, source.folder);
}

// The rest of the configuration is of a run, and need not hold here or of an imported model.
WeightOrigin origin_of(const TrainingState& state, const fs::path& checkpoint) {
  const auto saved = state.extra.find(kConfigEntry);
  if (saved == state.extra.end()) {
    throw DataError(fmt::format("{} does not say what model it is of", checkpoint.string()));
  }
  const RunConfig config = parse_run_config(saved->second, checkpoint.string(), {}).config;
  throw_if_any(check(config.model));
  return {config.model, tokenizer_beside(checkpoint, config.data.tokenizer)};
}

std::map<std::string, std::string> hub_entries(const std::string& weights) {
  if (weights == "none" || !fs::exists(weights)) return {};
  const WeightSource source = find_weight_source(weights);
  if (!source.checkpoint) {
    return {{kHubConfigEntry, read_file(source.folder / "config.json")},
            {kHubFolderEntry, fs::absolute(source.folder).lexically_normal().string()}};
  }
  PosixFileSystem files;
  std::map<std::string, std::string> found;
  for (const auto& [name, text] : read_manifest(files, source.folder).state.extra) {
    if (name == kHubConfigEntry || name == kHubFolderEntry) found.emplace(name, text);
  }
  return found;
}

}  // namespace quatrain::apps
