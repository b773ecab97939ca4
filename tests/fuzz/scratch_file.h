// SPDX-License-Identifier: Apache-2.0
// A file for parsers that read one by its path: in memory where the system offers that, written
// again for each input, gone with the process.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <span>
#include <string>

namespace quatrain {

class ScratchFile {
 public:
  ScratchFile() : file_(::memfd_create("fuzz", 0)) {
    if (file_ < 0) std::abort();
  }
  ~ScratchFile() { ::close(file_); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  std::filesystem::path hold(std::span<const unsigned char> bytes) {
    if (::ftruncate(file_, 0) != 0 ||
        ::pwrite(file_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
      std::abort();
    }
    return "/proc/self/fd/" + std::to_string(file_);
  }

 private:
  int file_;
};

}  // namespace quatrain
