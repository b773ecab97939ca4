// SPDX-License-Identifier: Apache-2.0
#include "quatrain/hub/export.h"

#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/safetensors_dtype.h"
#include "quatrain/checkpoint/safetensors_stream.h"
#include "quatrain/hub/folder_files.h"
#include "quatrain/hub/source.h"
#include "quatrain/hub/weight_files.h"
#include "quatrain/spec/model_io.h"

namespace quatrain {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kChunkBytes = 16 << 20;

// One file: which of the model's file tensors it holds, and their entries.
struct Shard {
  std::vector<TensorEntry> entries;
  std::int64_t bytes = 0;
};

class Exporter {
 public:
  Exporter(FileSystem& files, CheckpointWeights& weights, const ModelSpec& spec,
           const ExportOptions& options)
      : files_(files), weights_(weights), options_(options) {
    for (auto& [name, parts] : hub_sources(spec)) {
      add(name, parts);
      parts_.emplace(name, std::move(parts));
    }
  }

  ExportReport run(const fs::path& folder) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      write(folder / file_name(i), shards_[i]);
      bytes += shards_[i].bytes;
    }
    if (shards_.size() > 1) write_file_atomically(folder / kIndexFile, index(bytes));
    return {std::ssize(parts_), bytes, std::ssize(shards_)};
  }

 private:
  at::ScalarType dtype_of(const HubParts& parts) const {
    return export_dtype(weights_, parts.front().info.name, options_);
  }

  void add(const std::string& name, const HubParts& parts) {
    const SafetensorsDtype& dtype = *find_safetensors_dtype(dtype_of(parts));
    std::int64_t bytes = dtype.bits / 8;
    for (std::int64_t size : file_shape(parts)) bytes *= size;
    if (shards_.empty() || shards_.back().bytes + bytes > options_.max_shard_bytes) {
      if (shards_.empty() || shards_.back().bytes > 0) shards_.emplace_back();
    }
    Shard& shard = shards_.back();
    shard.entries.push_back({name, std::string(dtype.name), file_shape(parts), 0, bytes});
    shard.bytes += bytes;
  }

  std::string file_name(std::size_t shard) const {
    if (shards_.size() == 1) return std::string(kWeightsFile);
    return fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards_.size());
  }

  void write(const fs::path& path, const Shard& shard) {
    const std::vector<TensorEntry> entries = in_file_order(shard.entries);
    SafetensorsStream file(files_, path, entries, {{"format", "pt"}});
    for (const TensorEntry& entry : entries) append(parts_.at(entry.name), file);
    file.finish();
  }

  void append(const HubParts& parts, SafetensorsStream& file) {
    const at::ScalarType dtype = dtype_of(parts);
    if (parts.front().info.hub.transposed) {
      std::vector<at::Tensor> pieces;
      for (const HubPart& part : parts) {
        pieces.push_back(weights_.rows(part.info, 0, part.info.shape[0], dtype));
      }
      file.append(at::cat(pieces).t());
      return;
    }
    for (const HubPart& part : parts) append_rows(part.info, dtype, file);
  }

  void append_rows(const ParameterInfo& info, at::ScalarType dtype, SafetensorsStream& file) {
    const std::int64_t all = info.shape[0];
    const std::int64_t row =
        std::max<std::int64_t>(info.numel() / std::max<std::int64_t>(all, 1), 1);
    const std::int64_t step = std::max<std::int64_t>(kChunkBytes / (8 * row), 1);
    for (std::int64_t begin = 0; begin < all; begin += step) {
      file.append(weights_.rows(info, begin, std::min(begin + step, all), dtype));
    }
  }

  std::string index(std::int64_t bytes) const {
    nlohmann::json map = nlohmann::json::object();
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      for (const TensorEntry& entry : shards_[i].entries) map[entry.name] = file_name(i);
    }
    const nlohmann::json document = {{"metadata", {{"total_size", bytes}}}, {"weight_map", map}};
    return document.dump(2) + "\n";
  }

  FileSystem& files_;
  CheckpointWeights& weights_;
  const ExportOptions& options_;
  std::map<std::string, HubParts> parts_;
  std::vector<Shard> shards_;
};

}  // namespace

bool keeps_dtype(const std::string& name) { return name.ends_with("e_score_correction_bias"); }

at::ScalarType export_dtype(const CheckpointWeights& weights, const std::string& name,
                            const ExportOptions& options) {
  return options.dtype && !keeps_dtype(name) ? *options.dtype : weights.dtype(name);
}

ExportReport export_weights(FileSystem& files, CheckpointWeights& weights, const ModelSpec& spec,
                            const fs::path& folder, const ExportOptions& options) {
  Exporter exporter(files, weights, spec, options);
  clear_folder(folder);
  return exporter.run(folder);
}

std::int64_t shard_size_from_text(const std::string& text) {
  std::size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  const std::string unit = text.substr(digits);
  const std::map<std::string, std::int64_t> units = {
      {"", 1}, {"B", 1}, {"KB", 1'000}, {"MB", 1'000'000}, {"GB", 1'000'000'000}};
  const auto found = units.find(unit);
  if (digits == 0 || digits > 18 || found == units.end()) {
    throw ConfigError(fmt::format(
        "--max-shard-size {}: give a whole number and B, KB, MB or GB (decimal), such as 5GB",
        text));
  }
  const std::int64_t count = std::stoll(text.substr(0, digits));
  if (count == 0) throw ConfigError("--max-shard-size 0: give at least 1");
  if (count > std::numeric_limits<std::int64_t>::max() / found->second) {
    throw ConfigError(fmt::format("--max-shard-size {}: too large", text));
  }
  return count * found->second;
}

}  // namespace quatrain
