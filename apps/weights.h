// SPDX-License-Identifier: Apache-2.0
// Weights that a command is given: a Hugging Face folder, a run, or a checkpoint of one.
#pragma once
#include <filesystem>
#include <functional>
#include <string>

#include "quatrain/engine/job.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain::apps {

struct WeightSource {
  std::filesystem::path folder;
  bool checkpoint = false;  // ours; else config.json and safetensors lie there
};
// Of a run its final weights, or, where it has none yet, its newest checkpoint. ConfigError.
WeightSource find_weight_source(const std::filesystem::path& path);

// RankJobOptions::fill.
std::function<void(Model& model, ZeroUnits& units, Communicator& world)> fill_from(
    const WeightSource& source);

// What was trained, and with which tokenizer: a path that open_tokenizer() takes.
struct WeightOrigin {
  ModelSpec spec;
  std::string tokenizer;
};
// DataError for a checkpoint that does not say.
WeightOrigin origin_of(const WeightSource& source);

}  // namespace quatrain::apps
