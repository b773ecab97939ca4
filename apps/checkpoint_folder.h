// SPDX-License-Identifier: Apache-2.0
// The checkpoint that a path on the command line means.
#pragma once
#include <filesystem>

#include "quatrain/checkpoint/file_system.h"

namespace quatrain::apps {

// A step's folder itself; of a run, or of a folder of checkpoints, the newest that is valid, which
// the log then names. ConfigError when there is no such folder, DataError when it has none.
std::filesystem::path find_checkpoint(FileSystem& files, const std::filesystem::path& path);

}  // namespace quatrain::apps
