// SPDX-License-Identifier: Apache-2.0
// A checkpoint's weights as a Hugging Face folder, streamed: some MiB are in memory, or one tensor
// where its layout is transposed (GPT-2). For every family that spec/ knows, whether or not it can
// be trained.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "quatrain/checkpoint/file_system.h"
#include "quatrain/hub/checkpoint_weights.h"
#include "quatrain/spec/model_spec.h"

namespace quatrain {

struct ExportOptions {
  std::optional<at::ScalarType> dtype{};         // none: each as it is in the checkpoint
  std::int64_t max_shard_bytes = 5'000'000'000;  // more only for a tensor that is larger
};
struct ExportReport {
  std::int64_t tensors = 0;
  std::int64_t bytes = 0;  // of all tensors
  std::int64_t files = 0;
};

// Biases that choose experts are never converted: in half precision they would choose others.
bool keeps_dtype(const std::string& name);
// The dtype that a parameter is exported in.
at::ScalarType export_dtype(const CheckpointWeights& weights, const std::string& name,
                            const ExportOptions& options);

// Writes model.safetensors, or shards and their index (greedy, in the order of the model), and
// removes what an earlier save has left, its config.json first: the folder is complete when
// write_hub_config() has written the new one. Throws StorageError.
ExportReport export_weights(FileSystem& files, CheckpointWeights& weights, const ModelSpec& spec,
                            const std::filesystem::path& folder, const ExportOptions& options);

// generation_config.json, unless it is there, and config.json, which `dtype` goes into, and what
// `source`, the config.json that the model came with, says beside the model; it may be empty.
void write_hub_config(const ModelSpec& spec, at::ScalarType dtype,
                      const std::filesystem::path& folder, std::string_view source = "");

// Copies the tokenizer's files and generation_config.json, byte for byte; how many there were.
int carry_small_files(const std::filesystem::path& from, const std::filesystem::path& to);

// "4GB", "500MB", "300000": decimal units. ConfigError.
std::int64_t shard_size_from_text(const std::string& text);

// Reads an exported folder as anyone would and compares it with the checkpoint: the logits of a
// fixed prompt, layer by layer, of the families that can run here, and each tensor. Empty when they
// agree, else the first layer or tensor that does not. Memory: two layers and the embeddings.
std::string export_fault(CheckpointWeights& weights, const ModelSpec& spec,
                         const std::filesystem::path& folder, const ExportOptions& options);

}  // namespace quatrain
