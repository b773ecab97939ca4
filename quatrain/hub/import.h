// SPDX-License-Identifier: Apache-2.0
// A Hugging Face folder's weights as a checkpoint, streamed: a part of one tensor's file is in
// memory, up to kImportBatch. For every family that spec/ knows, whether or not it can be trained.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/checkpoint/file_system.h"
#include "quatrain/checkpoint/manifest.h"
#include "quatrain/hub/hub.h"

namespace quatrain {

inline constexpr std::int64_t kImportBatch = 1 << 30;  // bytes; more for a tensor that is larger

struct ImportOptions {
  LoadOptions match{};                    // its `open` and `close` are not called
  std::optional<at::ScalarType> dtype{};  // of all weights; none: each as it is in the files
  std::int64_t batch_bytes = kImportBatch;
};
struct ImportReport {
  std::int64_t parameters = 0;
  std::int64_t bytes = 0;
  std::vector<std::string> ignored;  // tensors that were left
};

// Throws DataError as load_weights() does; nothing is written.
void check_match(const std::filesystem::path& hub_folder, const ModelSpec& spec,
                 const LoadOptions& options);

// Makes the folder a checkpoint of `state` that holds the weights and nothing else: its manifest
// comes last. Throws DataError as load_weights() does, StorageError.
ImportReport import_weights(FileSystem& files, const std::filesystem::path& hub_folder,
                            const ModelSpec& spec, const std::filesystem::path& checkpoint,
                            const TrainingState& state, const ImportOptions& options = {});

}  // namespace quatrain
