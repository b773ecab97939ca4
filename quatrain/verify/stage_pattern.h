// SPDX-License-Identifier: Apache-2.0
// What is wrong along a pipeline: which stages the tensors that differ belong to. Private to
// verify/.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "quatrain/engine/job.h"
#include "quatrain/verify/compare.h"

namespace quatrain {

class StagePattern {
 public:
  explicit StagePattern(const RankJobOptions& job);

  // The stages of which all gradients differ, where no others do; empty where it is otherwise, or
  // the model is one stage. `grads`: what they should be; those that vanish tell nothing.
  std::vector<int> alone(const std::set<std::string>& differ, const NamedTensors& grads) const;
  // The stages of rank 0, where `norm` is that of their gradients alone.
  std::vector<int> own_norm(double norm, const NamedTensors& grads, double tolerance) const;
  // The stage that begins with this layer; nothing for the first one.
  std::optional<int> begins_at(std::size_t layer) const;

 private:
  std::vector<StageLayers> stages_;
  std::vector<std::set<std::string>> names_;  // of parameters, by stage; a tied table's twice
  std::vector<int> first_rank_;               // its stages
  std::set<std::string> counted_;             // of those, in norms
};

// "stage 1", "stages 0, 2"
std::string to_string(const std::vector<int>& stages);

}  // namespace quatrain
