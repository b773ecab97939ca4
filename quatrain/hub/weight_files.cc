// SPDX-License-Identifier: Apache-2.0
#include "quatrain/hub/weight_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "quatrain/base/error.h"
#include "quatrain/base/file.h"
#include "quatrain/base/log.h"
#include "quatrain/checkpoint/json_scanner.h"

namespace quatrain {
namespace fs = std::filesystem;
namespace {

// Empty when the name is a plain relative path of a safetensors file, else what is wrong. Judged as
// a Windows path too: a folder is refused or read on every system alike.
std::string shard_name_problem(std::string_view name) {
  constexpr std::string_view kExtension = ".safetensors";
  if (name.find('\\') != std::string_view::npos) return "has a backslash";
  if (name.find(':') != std::string_view::npos) return "has a drive";
  if (name.starts_with('/')) return "begins at the root";
  if (std::any_of(name.begin(), name.end(), [](unsigned char c) { return std::iscntrl(c) != 0; })) {
    return "has a control character";
  }
  for (const fs::path& part : fs::path(name)) {
    if (part == "..") return "leaves the folder";
  }
  if (!name.ends_with(kExtension) || name.size() == kExtension.size()) {
    return "is not a .safetensors file";
  }
  return "";
}

void read_weight_map(JsonScanner& json, WeightIndex& index) {
  json.open_object();
  std::string tensor;
  std::string file;
  while (json.next_key(tensor)) {
    json.string(file);
    const std::string problem = shard_name_problem(file);
    if (!problem.empty()) json.fail(fmt::format("shard name \"{}\" {}", file, problem));
    if (!index.file_of.emplace(tensor, file).second) {
      json.fail(fmt::format("tensor \"{}\" is mapped twice", tensor));
    }
  }
}

void read_index_metadata(JsonScanner& json, WeightIndex& index) {
  json.open_object();
  std::string key;
  std::set<std::string> seen;
  while (json.next_key(key)) {
    if (!seen.insert(key).second) json.fail(fmt::format("metadata holds \"{}\" twice", key));
    if (key == "total_size") {
      index.total_size = json.integer();
    } else {
      json.skip_value();
    }
  }
}

void check_format(const SafetensorsFile& file, const fs::path& path) {
  const auto& metadata = file.header().metadata;
  const auto format = metadata.find("format");
  if (format == metadata.end() || format->second == "pt" || format->second == "mlx") return;
  throw DataError(fmt::format("{}: weights of format \"{}\"; \"pt\" and \"mlx\" can be read",
                              path.string(), format->second));
}

std::int64_t total_bytes(const std::map<std::string, SafetensorsFile>& files) {
  std::int64_t sum = 0;
  for (const auto& [name, file] : files) {
    for (const TensorEntry& entry : file.header().tensors) sum += entry.end - entry.begin;
  }
  return sum;
}

}  // namespace

WeightIndex parse_weight_index(std::string_view text) {
  WeightIndex index;
  JsonScanner json(text);
  std::set<std::string> seen;
  std::string key;
  json.open_object();
  while (json.next_key(key)) {
    if (!seen.insert(key).second) json.fail(fmt::format("\"{}\" twice", key));
    if (key == "weight_map") {
      read_weight_map(json, index);
    } else if (key == "metadata") {
      read_index_metadata(json, index);
    } else {
      json.skip_value();
    }
  }
  json.end();
  if (!seen.contains("weight_map")) throw DataError("no \"weight_map\"");
  return index;
}

WeightFiles::WeightFiles(const fs::path& folder, bool allow_unindexed) : folder_(folder) {
  const bool has_single = fs::exists(folder / kWeightsFile);
  const bool has_index = fs::exists(folder / kIndexFile);
  if (has_single && has_index) {
    throw DataError(fmt::format("{}: holds both {} and {}, and they may differ: remove one",
                                folder.string(), kWeightsFile, kIndexFile));
  }
  if (has_index) {
    open_index(allow_unindexed);
  } else if (has_single) {
    const fs::path path = folder / kWeightsFile;
    const auto& file = files_.emplace(kWeightsFile, SafetensorsFile(path)).first->second;
    check_format(file, path);
    for (const TensorEntry& entry : file.header().tensors) file_of_.emplace(entry.name, &file);
  } else {
    throw ConfigError(fmt::format("{}: no weights: neither {} nor {}", folder.string(),
                                  kWeightsFile, kIndexFile));
  }
  for (const auto& [name, file] : file_of_) names_.push_back(name);
}

void WeightFiles::open_index(bool allow_unindexed) {
  const fs::path path = folder_ / kIndexFile;
  WeightIndex index;
  try {
    index = parse_weight_index(read_file(path));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", path.string(), error.what()));
  }
  for (const auto& [tensor, name] : index.file_of) {
    auto found = files_.find(name);
    if (found == files_.end()) {
      if (!fs::exists(folder_ / name)) {
        throw DataError(fmt::format("{}: shard {} is absent", path.string(), name));
      }
      found = files_.emplace(name, SafetensorsFile(folder_ / name)).first;
      check_format(found->second, folder_ / name);
      check_shard(index, name, found->second, allow_unindexed);
    }
    if (!found->second.has(tensor)) {
      throw DataError(fmt::format("{}: tensor \"{}\" is not in {}", path.string(), tensor, name));
    }
    file_of_.emplace(tensor, &found->second);
  }
  const std::int64_t bytes = total_bytes(files_);
  if (index.total_size >= 0 && index.total_size != bytes) {
    log_warning(fmt::format("{}: total_size is {}, the tensors have {} bytes", path.string(),
                            index.total_size, bytes));
  }
}

void WeightFiles::check_shard(const WeightIndex& index, const std::string& file,
                              const SafetensorsFile& shard, bool allow_unindexed) const {
  if (allow_unindexed) return;
  for (const TensorEntry& entry : shard.header().tensors) {
    const auto mapped = index.file_of.find(entry.name);
    if (mapped != index.file_of.end() && mapped->second == file) continue;
    throw DataError(fmt::format(
        "{}: {} holds tensor \"{}\", which the index places {}", (folder_ / kIndexFile).string(),
        file, entry.name, mapped == index.file_of.end() ? "nowhere" : "in " + mapped->second));
  }
}

const SafetensorsFile& WeightFiles::file_of(std::string_view name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    throw DataError(fmt::format("{}: no tensor \"{}\"", folder_.string(), name));
  }
  return *found->second;
}

bool WeightFiles::has(std::string_view name) const { return file_of_.contains(name); }
const TensorEntry& WeightFiles::entry(std::string_view name) const {
  return file_of(name).entry(name);
}
at::Tensor WeightFiles::tensor(std::string_view name) const { return file_of(name).tensor(name); }
at::Tensor WeightFiles::rows(std::string_view name, std::int64_t begin, std::int64_t end) const {
  return file_of(name).rows(name, begin, end);
}
at::Tensor WeightFiles::merged_rows(std::string_view name, std::int64_t begin,
                                    std::int64_t end) const {
  return file_of(name).merged_rows(name, begin, end);
}

}  // namespace quatrain
