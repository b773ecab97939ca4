// SPDX-License-Identifier: Apache-2.0
// ModelSpec from and to Hugging Face's vocabulary: config.json files, the [model] section of a run,
// and the catalogue in configs/catalog/models/<name>.toml (the same keys, and `parameters`, the
// published count).
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

struct ModelResult {
  ModelSpec spec;
  Problems problems;
};
// A config.json's text, of transformers v4 or v5 keys. `where` names the file in problems.
ModelResult model_from_hub_json(std::string_view json, std::string_view where);
// Keys of config.json that recreate the spec (for export and resolved configs), as JSON.
std::string to_hub_json(const ModelSpec& spec);
// The same and, of another config.json, the keys that say nothing of the spec (pad_token_id,
// use_cache, keys that we do not know), but what is not true of weights that were read and written
// again: quantization, layers that predict further tokens. Empty or not an object: no keys.
std::string to_hub_json(const ModelSpec& spec, std::string_view source);

// Rules a model must satisfy by itself (head counts, widths, ranges).
Problems check(const ModelSpec& spec);

struct CatalogEntry {
  std::string name;
  ModelSpec spec;
  std::optional<std::int64_t> published_parameters;
};
// Folder of the catalogue: QUATRAIN_CATALOG when set, else beside the binary or in the source tree.
std::filesystem::path catalog_folder();
std::vector<std::string> catalog_models();
// Throws ConfigError with the nearest names when there is none of that name.
CatalogEntry catalog_model(std::string_view name);
// A catalogue entry, a TOML file with the keys of one, a Hugging Face folder or its config.json.
// Throws ConfigError with every problem; of what is neither a name nor a file, as catalog_model().
ModelSpec find_model(std::string_view name_or_path);

}  // namespace quatrain
