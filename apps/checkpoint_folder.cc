// SPDX-License-Identifier: Apache-2.0
// See checkpoint_folder.h.
#include "apps/checkpoint_folder.h"

#include <fmt/format.h>

#include "quatrain/base/error.h"
#include "quatrain/base/log.h"
#include "quatrain/checkpoint/manifest.h"
#include "quatrain/checkpoint/step_folder.h"

namespace quatrain::apps {
namespace fs = std::filesystem;

fs::path find_checkpoint(FileSystem& files, const fs::path& path) {
  if (!fs::is_directory(path)) {
    throw ConfigError(fmt::format("{}: {}; give the folder of a step, of checkpoints, or of a run",
                                  path.string(),
                                  fs::exists(path) ? "it is a file" : "there is no such folder"));
  }
  if (fs::exists(path / kManifestName)) return path;
  bool any = false;
  for (const fs::path& folder : {path / "checkpoints", path}) {
    any = any || !list_steps(files, folder).empty();
    const auto step = newest_valid(files, folder);
    if (!step) continue;
    const fs::path found = folder / step_folder_name(*step);
    log_info(fmt::format("the newest valid step is {}", found.string()));
    return found;
  }
  throw DataError(
      fmt::format("{}: {}", path.string(),
                  any ? "none of its checkpoints is valid; `quatrain checkpoint verify` "
                        "of one step's folder says why"
                      : fmt::format("no checkpoint: neither {} nor folders of steps "
                                    "that have one are there",
                                    kManifestName)));
}

}  // namespace quatrain::apps
