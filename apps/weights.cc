// SPDX-License-Identifier: Apache-2.0
// See weights.h.
#include "apps/weights.h"

#include <fmt/format.h>

#include "apps/saver.h"
#include "quatrain/base/error.h"
#include "quatrain/checkpoint/step_folder.h"
#include "quatrain/engine/saved_state.h"
#include "quatrain/hub/hub.h"
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
  const TrainingState state = read_manifest(files, source.folder).state;
  const auto saved = state.extra.find(kConfigEntry);
  if (saved == state.extra.end()) {
    throw DataError(fmt::format("{} does not say what model it is of", source.folder.string()));
  }
  const RunConfigResult run = parse_run_config(saved->second, source.folder.string(), {});
  throw_if_any(run.problems);
  return {run.config.model, run.config.data.tokenizer};
}

}  // namespace quatrain::apps
