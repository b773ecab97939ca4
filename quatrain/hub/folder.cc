// SPDX-License-Identifier: Apache-2.0
// What a folder is, from the files in it.
#include <fmt/format.h>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/hub/hub.h"
#include "quatrain/hub/weight_files.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kRunConfigFile = "config.toml";
constexpr const char* kRunWeights = "weights";

bool has_weights(const fs::path& folder) {
  return fs::exists(folder / kWeightsFile) || fs::exists(folder / kIndexFile);
}

std::string instead(const fs::path& folder) {
  if (!fs::exists(folder)) return "there is no such folder";
  if (!fs::is_directory(folder)) return "it is a file; give the folder that holds it";
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json", "model.gguf",
                            "tf_model.h5", "consolidated.00.pth"}) {
    if (fs::exists(folder / other)) {
      return fmt::format("it holds {}; only safetensors can be read", other);
    }
  }
  if (fs::exists(folder / kRunConfigFile)) return "the run has written no weights yet";
  return fmt::format("it needs {} and {}", kConfigFile, kWeightsFile);
}

}  // namespace

HubFolder find_weights(const fs::path& folder) {
  for (const auto& [kind, weights] : {std::pair{FolderKind::kHuggingFace, folder},
                                      std::pair{FolderKind::kRun, folder / kRunWeights}}) {
    if (has_weights(weights) && fs::exists(weights / kConfigFile)) return {kind, weights};
  }
  throw ConfigError(fmt::format("{}: neither a Hugging Face folder nor a finished run: {}",
                                folder.string(), instead(folder)));
}

ModelSpec read_hub_spec(const fs::path& folder) {
  const fs::path file = find_weights(folder).weights / kConfigFile;
  ModelResult result = model_from_hub_json(read_file(file), file.string());
  throw_if_any(result.problems);
  return result.spec;
}

}  // namespace quatrain
