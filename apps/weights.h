// SPDX-License-Identifier: Apache-2.0
// Weights that a command is given: a Hugging Face folder, a run, or a checkpoint of one.
#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "quatrain/checkpoint/manifest.h"
#include "quatrain/engine/job.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain::apps {

// Folder of an import's tokenizer, beside its steps.
inline constexpr const char* kCarriedTokenizer = "tokenizer";

struct WeightSource {
  std::filesystem::path folder;
  bool checkpoint = false;  // ours; else config.json and safetensors lie there
};
// Of a run its final weights, or, where it has none yet, its newest checkpoint. ConfigError.
WeightSource find_weight_source(const std::filesystem::path& path);

// RankJobOptions::fill.
std::function<void(Model& model, ZeroUnits& units, Communicator& world)> fill_from(
    const WeightSource& source);

// Entries kHubConfigEntry and kHubFolderEntry of TrainingState::extra for a run that begins with
// `weights` (RunConfig::weights); none where they never were in a Hugging Face folder.
std::map<std::string, std::string> hub_entries(const std::string& weights);

// What was trained, and with which tokenizer: a path that open_tokenizer() takes.
struct WeightOrigin {
  ModelSpec spec;
  std::string tokenizer;
};
// DataError for a checkpoint that does not say, ConfigError for a model that none can be.
WeightOrigin origin_of(const WeightSource& source);
WeightOrigin origin_of(const TrainingState& state, const std::filesystem::path& checkpoint);

}  // namespace quatrain::apps
