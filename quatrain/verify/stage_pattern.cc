// SPDX-License-Identifier: Apache-2.0
#include "quatrain/verify/stage_pattern.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "quatrain/base/text.h"
#include "quatrain/spec/stages.h"

namespace quatrain {
namespace {

std::set<std::string> names_of(const RankJobOptions& job, const std::vector<StageLayers>& stages,
                               bool counted) {
  std::set<std::string> names;
  for (const UnitSpec& unit : unit_specs(job.spec, {}, job.build.trainable, stages)) {
    for (const LocalParameter& local : unit.parameters) {
      if (local.info.trainable && (local.counted || !counted)) names.insert(local.info.name);
    }
  }
  return names;
}

std::set<std::string> without(const std::set<std::string>& names,
                              const std::set<std::string>& others) {
  std::set<std::string> rest;
  std::set_difference(names.begin(), names.end(), others.begin(), others.end(),
                      std::inserter(rest, rest.end()));
  return rest;
}

}  // namespace

StagePattern::StagePattern(const RankJobOptions& job)
    : stages_(stage_layers(job.spec.layers, job.plan.stage_begin)) {
  for (const StageLayers& stage : stages_) names_.push_back(names_of(job, {stage}, false));
  const std::vector<StageLayers> own =
      stages_of_rank(stages_, job.schedule.rank_of_stage.front(), 0);
  for (const StageLayers& stage : own) first_rank_.push_back(stage.stage);
  counted_ = names_of(job, own, true);
}

std::vector<int> StagePattern::alone(const std::set<std::string>& differ,
                                     const NamedTensors& grads) const {
  const std::set<std::string> silent = vanishing(grads);
  std::set<std::string> rest = without(differ, silent);
  std::vector<int> stages;
  bool all = true;
  for (std::size_t s = 0; s < names_.size(); ++s) {
    const std::set<std::string> names = without(names_[s], silent);
    if (names.empty()) continue;
    const bool differs = std::includes(differ.begin(), differ.end(), names.begin(), names.end());
    all = all && differs;
    if (!differs) continue;
    stages.push_back(static_cast<int>(s));
    rest = without(rest, names);
  }
  if (all || !rest.empty()) return {};
  return stages;
}

std::vector<int> StagePattern::own_norm(double norm, const NamedTensors& grads,
                                        double tolerance) const {
  double squares = 0.0;
  for (const std::string& name : counted_) {
    const auto grad = grads.find(name);
    if (grad == grads.end()) return {};
    const double length = grad->second.to(at::kDouble).norm().item<double>();
    squares += length * length;
  }
  const bool some = first_rank_.size() < stages_.size() && squares > 0.0;
  if (!some || relative_error(norm, std::sqrt(squares)) > tolerance) return {};
  return first_rank_;
}

std::optional<int> StagePattern::begins_at(std::size_t layer) const {
  for (std::size_t s = 1; s < stages_.size(); ++s) {
    const bool here = static_cast<std::size_t>(stages_[s].begin) == layer && stages_[s].size() > 0;
    if (here) return static_cast<int>(s);
  }
  return std::nullopt;
}

std::string to_string(const std::vector<int>& stages) {
  const std::vector<std::int64_t> wide(stages.begin(), stages.end());
  return (stages.size() == 1 ? "stage " : "stages ") + join(wide, ", ");
}

}  // namespace quatrain
