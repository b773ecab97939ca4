// SPDX-License-Identifier: Apache-2.0
#include "quatrain/hub/folder_files.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/hub/export.h"
#include "quatrain/hub/weight_files.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;

constexpr const char* kGenerationFile = "generation_config.json";
constexpr std::array kSmallFiles = {"tokenizer.json",     "tokenizer_config.json",
                                    "tokenizer.model",    "special_tokens_map.json",
                                    "added_tokens.json",  "vocab.json",
                                    "merges.txt",         "chat_template.jinja",
                                    "chat_template.json", kGenerationFile};

std::string_view dtype_key(at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return "bfloat16";
  if (dtype == at::kHalf) return "float16";
  return dtype == at::kDouble ? "float64" : "float32";
}

// What a sampler of text needs to know where a text begins and ends.
Json generation_keys(const Json& config) {
  Json keys = {{"_from_model_config", true}};
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (config.contains(key)) keys[key] = config[key];
  }
  return keys;
}

}  // namespace

void clear_folder(const fs::path& folder) {
  try {
    fs::create_directories(folder);
    for (const char* name : {kHubConfigFile, kGenerationFile}) fs::remove(folder / name);
    for (const auto name : {kIndexFile, kWeightsFile}) fs::remove(folder / name);
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (glob_match("model-*-of-*.safetensors", entry.path().filename().string())) {
        fs::remove(entry.path());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw StorageError(fmt::format("{}: {}", folder.string(), error.code().message()));
  }
}

void write_hub_config(const ModelSpec& spec, at::ScalarType dtype, const fs::path& folder,
                      std::string_view source) {
  Json config = Json::parse(to_hub_json(spec, source));
  config["torch_dtype"] = dtype_key(dtype);
  if (!fs::exists(folder / kGenerationFile)) {
    write_file_atomically(folder / kGenerationFile, generation_keys(config).dump(2) + "\n");
  }
  write_file_atomically(folder / kHubConfigFile, config.dump(2) + "\n");
}

int carry_small_files(const fs::path& from, const fs::path& to) {
  int carried = 0;
  for (const char* name : kSmallFiles) {
    if (!fs::is_regular_file(from / name)) continue;
    if (carried++ == 0) fs::create_directories(to);
    write_file_atomically(to / name, read_file(from / name));
  }
  return carried;
}

}  // namespace quatrain
