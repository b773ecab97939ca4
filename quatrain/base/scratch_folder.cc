// SPDX-License-Identifier: Apache-2.0
#include "quatrain/base/scratch_folder.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <string>
#include <system_error>

#include "quatrain/base/error.h"

namespace quatrain {

ScratchFolder::ScratchFolder() {
  const std::filesystem::path below = std::filesystem::temp_directory_path();
  std::string pattern = (below / "quatrain-XXXXXX").string();
  if (::mkdtemp(pattern.data()) == nullptr) {
    throw StorageError(fmt::format("cannot make a folder in {}", below.string()));
  }
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace quatrain
