// SPDX-License-Identifier: Apache-2.0
// A safetensors file whose values come bit by bit, so that no more than a part of one tensor is in
// memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "quatrain/checkpoint/safetensors.h"
#include "quatrain/checkpoint/storage.h"

namespace quatrain {

// Puts entries into the order of a canonical file (widest dtype first, then name), end to end.
std::vector<TensorEntry> in_file_order(std::vector<TensorEntry> entries);

// Under a temporary name until finish(): readers see the whole file or none. StorageError.
class SafetensorsStream {
 public:
  SafetensorsStream(FileSystem& files, std::filesystem::path path,
                    const std::vector<TensorEntry>& entries,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsStream();
  SafetensorsStream(const SafetensorsStream&) = delete;
  SafetensorsStream& operator=(const SafetensorsStream&) = delete;

  // The next values, row-major, of the entries in their order.
  void append(const at::Tensor& values);
  // Durable, under its name. BugError when values are missing.
  void finish();

 private:
  FileSystem& files_;
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  std::optional<OutputFile> file_;
  std::int64_t missing_ = 0;  // bytes
};

}  // namespace quatrain
