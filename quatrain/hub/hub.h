// SPDX-License-Identifier: Apache-2.0
// Hugging Face folders in and out: config.json, model.safetensors or its shards. Names, fusions and
// transpositions come from each parameter's HubSource; nothing is loaded halfway or by guess.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/model/model.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

enum class FolderKind : std::uint8_t { kHuggingFace, kRun };
struct HubFolder {
  FolderKind kind;
  std::filesystem::path
      weights;  // holds config.json and the tensors; the folder itself or <run>/weights
};
// What a folder that `generate`, `eval` or `weights = FOLDER` name is. Throws ConfigError: what is
// missing, and what kind of weights lie there instead.
HubFolder find_weights(const std::filesystem::path& folder);

// The spec in a folder's config.json. Throws ConfigError with every problem.
ModelSpec read_hub_spec(const std::filesystem::path& folder);

struct LoadOptions {
  bool allow_missing = false;  // parameters that the files lack keep their values
  bool allow_extra = false;    // tensors that the model lacks, or that no index names, are left
  bool ignore_stored_head = false;  // tied model, and a head that differs from the embedding: tie
  // Called before and after a unit is filled, one unit at a time: for ranks that keep a part of it.
  std::function<void(ParamUnit&)> open = nullptr;
  std::function<void(ParamUnit&)> close = nullptr;
};
struct LoadReport {
  std::int64_t loaded = 0;           // parameters
  std::vector<std::string> ignored;  // buffers that are no weights, and what options let pass
  std::vector<std::string> missing;
};
// Fills every parameter of a model, or of its stages on this rank, allocated or opened by
// `options`, from a Hugging Face or run folder, converted to the model's dtype from F32, BF16, F16
// or F64. Throws DataError with the counts and first names of missing, unexpected and misshaped
// tensors; then the model's values are unspecified.
LoadReport load_weights(Model& model, const std::filesystem::path& folder,
                        const LoadOptions& options = {});

// Parameters by name, whole.
using WholeWeights = std::map<std::string, at::Tensor>;

// Writes config.json and model.safetensors (values as they are, in the model's dtype; a tied head
// is not written) so that transformers and load_weights read them; makes the folder; removes the
// shards of an earlier save. config.json comes last: a folder with one is complete. Throws
// StorageError.
void save_weights(const Model& model, const std::filesystem::path& folder);
// The same of a model whose ranks hold pieces: `model` says what it is, `weights` hold all of it.
void save_weights(const Model& model, const WholeWeights& weights,
                  const std::filesystem::path& folder);

}  // namespace quatrain
