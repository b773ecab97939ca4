// SPDX-License-Identifier: Apache-2.0
// The files of a Hugging Face folder beside its weights.
#pragma once
#include <filesystem>

namespace quatrain {

inline constexpr const char* kHubConfigFile = "config.json";

// Makes the folder, or removes config.json, generation_config.json and the
// weights of an earlier save from it. Throws
// StorageError.
void clear_folder(const std::filesystem::path& folder);

}  // namespace quatrain
