// SPDX-License-Identifier: Apache-2.0
// What `plan`, `simulate` and `plan --batch` have in common: reading models, writing answers.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "quatrain/planner/search.h"

namespace quatrain::apps {

// A catalogue entry, a Hugging Face folder or a config.json.
ModelSpec model_of(const std::string& name_or_path);

nlohmann::ordered_json parts_json(const StepParts& parts);
nlohmann::ordered_json memory_json(const MemoryParts& memory);

// A configuration of `train`; data is the user's to add.
std::string train_toml(const Job& job, const std::string& model, const Geometry& geometry);

// Answers a CSV of questions. Returns how many rows were bad.
int answer_batch(const std::string& in, const std::string& out);

}  // namespace quatrain::apps
