// SPDX-License-Identifier: Apache-2.0
// What `plan`, `plan --batch` and `simulate` have in common: questions read, answers written.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "quatrain/planner/search.h"

namespace quatrain::apps {

// "bfloat16", "float32", short forms, and "fp8": products in fp8, all else in bfloat16. Throws
// ConfigError with these.
void set_dtype(Job& job, std::string_view text);

Plan plan_of(const Job& job, const Geometry& geometry);
double tokens_per_second(const Job& job, const Estimate& estimate);

nlohmann::ordered_json parts_json(const StepParts& parts);
nlohmann::ordered_json memory_json(const MemoryParts& memory);
nlohmann::ordered_json plan_json(const Job& job, const RankedPlan& plan);

// A configuration of `train`; data is the user's to add. `model`: as it was asked for.
std::string train_toml(const Job& job, const std::string& model, const Geometry& geometry);

// Answers a CSV of questions, each row by itself. Returns how many rows were bad.
int answer_batch(const std::string& in, const std::string& out);

}  // namespace quatrain::apps
