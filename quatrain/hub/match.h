// SPDX-License-Identifier: Apache-2.0
// Compares a folder's tensors with a model's, before anything is read: names, shapes, dtypes and
// the tied head.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "quatrain/hub/hub.h"
#include "quatrain/hub/source.h"
#include "quatrain/hub/weight_files.h"

namespace quatrain {

class HubMatch {
 public:
  // Throws DataError with the counts and first names of missing, unexpected and misshaped tensors.
  // All arguments outlive it.
  HubMatch(const ModelSpec& spec, const HubSources& sources, const WeightFiles& files,
           const LoadOptions& options);

  // What a tensor of `sources` is called in the files; whether they have it.
  std::string name_in_file(const std::string& tensor) const;
  bool has(const std::string& tensor) const { return files_.has(name_in_file(tensor)); }
  const std::vector<std::string>& ignored() const { return ignored_; }
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  void drop_prefix();
  void compare_parameters();
  void compare_names();
  void check_tied_head();
  void refuse();
  std::vector<std::string> with_nearest() const;

  const ModelSpec& spec_;
  const HubSources& sources_;
  const WeightFiles& files_;
  const LoadOptions& options_;
  std::string prefix_;
  bool prefixed_ = true;
  std::set<std::string> expected_;
  std::vector<std::string> ignored_;
  std::vector<std::string> missing_;
  std::vector<std::string> extra_;
  std::vector<std::string> misfits_;
};

}  // namespace quatrain
