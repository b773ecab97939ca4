// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <filesystem>

namespace quatrain {

// A new folder below the system's temporary one, removed with all it holds when its owner ends.
class ScratchFolder {
 public:
  ScratchFolder();  // StorageError where none can be made
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace quatrain
