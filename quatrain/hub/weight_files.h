// SPDX-License-Identifier: Apache-2.0
// The tensors of a folder as one set: model.safetensors, or the shards that
// model.safetensors.index.json maps names to.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/checkpoint/safetensors.h"

namespace quatrain {

inline constexpr std::string_view kWeightsFile = "model.safetensors";
inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// The index file: which shard holds which tensor.
struct WeightIndex {
  std::map<std::string, std::string> file_of;  // by tensor
  std::int64_t total_size = -1;                // bytes of all tensors; -1: not given
};
// Throws DataError naming the rule: repeated names, shards outside the folder or not *.safetensors.
WeightIndex parse_weight_index(std::string_view json);

class WeightFiles {
 public:
  // Opens all files and compares them with the index. Throws DataError for a mapped tensor that its
  // shard lacks, for one that a shard holds and the map places elsewhere or nowhere (unless
  // `allow_unindexed`), for formats other than pt and mlx; ConfigError when there are no weights.
  explicit WeightFiles(const std::filesystem::path& folder, bool allow_unindexed = false);

  const std::vector<std::string>& names() const { return names_; }  // sorted
  bool has(std::string_view name) const;
  const TensorEntry& entry(std::string_view name) const;
  at::Tensor tensor(std::string_view name) const;
  at::Tensor rows(std::string_view name, std::int64_t begin, std::int64_t end) const;
  at::Tensor merged_rows(std::string_view name, std::int64_t begin, std::int64_t end) const;
  const std::filesystem::path& folder() const { return folder_; }

 private:
  void open_index(bool allow_unindexed);
  void check_shard(const WeightIndex& index, const std::string& file, const SafetensorsFile& shard,
                   bool allow_unindexed) const;
  const SafetensorsFile& file_of(std::string_view name) const;

  std::filesystem::path folder_;
  std::map<std::string, SafetensorsFile> files_;
  std::map<std::string, const SafetensorsFile*, std::less<>> file_of_;
  std::vector<std::string> names_;
};

}  // namespace quatrain
