// SPDX-License-Identifier: Apache-2.0
// The folder of a run: config.toml (resolved), plan.json, metrics.jsonl, log.txt, weights/.
#pragma once
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "quatrain/spec/run_config.h"

namespace quatrain::apps {

class RunFolder {
 public:
  // Creates it with config.toml and plan.json. A folder that already holds a run is kept under
  // "<folder>.<n>", so that nothing is overwritten; or, where the run goes on behind step
  // `continued`, loses the lines of later steps, which will be made again. Throws StorageError.
  explicit RunFolder(const RunConfig& config, std::optional<std::int64_t> continued = {});
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  void add_metrics(const nlohmann::ordered_json& line);  // flushed: readers may follow the file
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path weights() const { return path_ / "weights"; }

 private:
  std::filesystem::path path_;
  std::ofstream metrics_;
};

}  // namespace quatrain::apps
