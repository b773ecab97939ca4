// SPDX-License-Identifier: Apache-2.0
// The reference's tensors are kept, the subject's are compared as they come.
#include "quatrain/verify/verify.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "quatrain/base/text.h"
#include "quatrain/spec/parameters.h"
#include "quatrain/verify/diagnose.h"
#include "quatrain/verify/stage_pattern.h"
#include "quatrain/verify/tolerance.h"

namespace quatrain {
namespace {

class Comparison {
 public:
  explicit Comparison(const Question& question)
      : question_(question),
        reference_(all_values(question.reference, question.steps)),
        tolerances_(question, reference_),
        stages_(question.subject.job) {
    for (const ParameterInfo& info : parameters(question.subject.job.spec)) {
      forward_.push_back(info.name);
      if (info.expert >= 0) experts_.insert(info.name);
    }
  }

  void run();
  VerifyReport report();

 private:
  std::vector<VerifyRow> rows_of(const StepValues& got, UpdateGain& gain) const;
  std::optional<VerifyRow> first_of(const std::vector<VerifyRow>& rows) const;
  void note(const std::vector<VerifyRow>& rows);
  Diagnosis look_at(const VerifyRow& row, const StepView& view, const StepValues& got) const;
  void look_at_stages(const std::vector<VerifyRow>& rows, const VerifyRow& first,
                      const StepValues& got, Diagnosis& diagnosis) const;
  std::string remarks(const std::vector<VerifyRow>& rows, const VerifyRow& first,
                      const Diagnosis& diagnosis, const StepValues& got) const;
  std::string met_by_the_backward(const std::vector<VerifyRow>& rows, const VerifyRow& first) const;
  void ask_other_geometries();
  bool differs(const Side& side, const VerifyRow& row) const;
  const StepValues& want(int step) const { return reference_.at(static_cast<std::size_t>(step)); }

  const Question& question_;
  std::vector<StepValues> reference_;  // by step
  Tolerances tolerances_;
  StagePattern stages_;
  std::vector<std::string> forward_;  // names in the order of the forward pass
  std::set<std::string> experts_;     // of routed experts
  std::map<Key, VerifyRow> worst_;
  std::optional<FirstDifference> first_;
  bool explained_ = false;  // by a pattern
};

// In units of what is allowed.
double severity(const VerifyRow& row) {
  return std::isfinite(row.tolerance) ? row.max_rel / row.tolerance : 0.0;
}

// Of the next step of a run; `gain` is that run's.
std::vector<VerifyRow> Comparison::rows_of(const StepValues& got, UpdateGain& gain) const {
  const StepValues& right = want(got.step);
  gain.add(got, right);
  std::vector<VerifyRow> rows;
  for (const auto& [key, max_rel] : errors_of(got, right)) {
    VerifyRow row{key.first, key.second, got.step, max_rel, tolerances_.of(got.step, key)};
    if (const double moved = gain.of(row.tensor); row.kind == Observed::kWeight && moved > 0.0) {
      row.tolerance += moved / right.weights.at(row.tensor).abs().max().item<double>();
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::optional<VerifyRow> Comparison::first_of(const std::vector<VerifyRow>& rows) const {
  // What routers see while the loss is right is wrong by itself.
  const bool loss_is_right = std::none_of(rows.begin(), rows.end(), [](const VerifyRow& row) {
    return row.kind == Observed::kLoss && row.differs();
  });
  const auto place = [&](const VerifyRow& row) {
    const auto name = std::find(forward_.begin(), forward_.end(), row.tensor);
    const bool router = row.kind == Observed::kRouter && loss_is_right;
    return std::tuple(!router, row.kind, name - forward_.begin());
  };
  std::optional<VerifyRow> first;
  for (const VerifyRow& row : rows) {
    if (row.differs() && (!first || place(row) < place(*first))) first = row;
  }
  return first;
}

void Comparison::note(const std::vector<VerifyRow>& rows) {
  for (const VerifyRow& row : rows) {
    const auto [found, is_new] = worst_.try_emplace({row.kind, row.tensor}, row);
    if (!is_new && severity(row) > severity(found->second)) found->second = row;
  }
}

Scattered of_one_number(double value) {
  at::Tensor x = at::full({1}, value, at::kDouble);
  return {{1}, {{0, {{0}, {1}}, std::move(x)}}};
}

Diagnosis Comparison::look_at(const VerifyRow& row, const StepView& view,
                              const StepValues& got) const {
  const Mesh mesh = question_.subject.mesh();
  const bool of_router = row.kind == Observed::kRouter;
  const bool of_experts = of_router || experts_.contains(row.tensor);
  const Looked looked{of_router ? row.tensor : std::string(name(row.kind)), row.tolerance,
                      of_experts ? View::kExperts : View::kDense};
  const auto number = [&](double have, double right) {
    Diagnosis found =
        diagnose(of_one_number(have), at::full({1}, right, at::kDouble), mesh, looked);
    if (found.axes.empty()) found.factor.reset();  // of one number every error is a factor
    return found;
  };
  if (row.kind == Observed::kLoss) return number(got.loss, want(row.step).loss);
  if (row.kind == Observed::kGradNorm) return number(got.norm, want(row.step).norm);
  if (of_router) return number(got.router.at(row.tensor), want(row.step).router.at(row.tensor));
  const bool gradient = row.kind == Observed::kGradient;
  const ScatteredTensors& tensors = gradient ? view.grads : view.weights;
  const NamedTensors& right = gradient ? want(row.step).grads : want(row.step).weights;
  const auto have = tensors.find(row.tensor);
  const auto should = right.find(row.tensor);
  if (have == tensors.end() || should == right.end()) return {{}, "only one side has it", {}};
  if (should->second.sizes() != at::IntArrayRef(have->second.shape)) {
    return {{}, "the shapes differ", {}};
  }
  return diagnose(have->second, should->second, mesh, looked);
}

// Adds what stages tell; their axis, where the tensor has no pattern of its own.
void Comparison::look_at_stages(const std::vector<VerifyRow>& rows, const VerifyRow& first,
                                const StepValues& got, Diagnosis& diagnosis) const {
  const NamedTensors& grads = want(got.step).grads;
  std::string says;
  if (first.kind == Observed::kGradient) {
    std::set<std::string> differ;
    for (const VerifyRow& row : rows) {
      if (row.kind == Observed::kGradient && row.differs()) differ.insert(row.tensor);
    }
    const std::vector<int> alone = stages_.alone(differ, grads);
    if (!alone.empty()) says = "only tensors of " + to_string(alone) + " differ";
  } else if (first.kind == Observed::kGradNorm) {
    const std::vector<int> own = stages_.own_norm(got.norm, grads, first.tolerance);
    if (!own.empty()) says = "each stage has its own: it is the norm of " + to_string(own);
  }
  if (says.empty()) return;
  diagnosis.hint = diagnosis.found() ? diagnosis.hint + "; " + says : says;
  const bool piped = question_.subject.mesh().degree(Axis::kPp) > 1;
  if (piped && diagnosis.axes.empty()) diagnosis.axes.push_back(Axis::kPp);
}

// As parameters count: the first is the embedding, the last the head.
std::string layer_name(std::size_t layer, std::size_t layers) {
  if (layer == 0) return "the embedding";
  return layer + 1 == layers ? "the head" : fmt::format("layers.{}", layer - 1);
}

// A wrong gradient of an activation reaches all that lies ahead of it.
std::string Comparison::met_by_the_backward(const std::vector<VerifyRow>& rows,
                                            const VerifyRow& first) const {
  std::string last;
  for (const std::string& tensor : forward_) {
    const bool differs = std::any_of(rows.begin(), rows.end(), [&](const VerifyRow& row) {
      return row.kind == Observed::kGradient && row.tensor == tensor && row.differs();
    });
    if (differs) last = tensor;
  }
  return last == first.tensor ? "" : "; the backward pass meets " + last + " first";
}

// What the other rows of the step add to the first one's pattern.
std::string Comparison::remarks(const std::vector<VerifyRow>& rows, const VerifyRow& first,
                                const Diagnosis& diagnosis, const StepValues& got) const {
  std::string text;
  const std::set<std::string> silent = vanishing(want(got.step).grads);
  const bool every =
      diagnosis.factor && got.grads.size() > 1 &&
      std::all_of(got.grads.begin(), got.grads.end(), [&](const auto& grad) {
        if (silent.contains(grad.first)) return true;
        const auto right = want(got.step).grads.find(grad.first);
        if (right == want(got.step).grads.end()) return false;
        const auto factor = common_factor(grad.second, right->second, first.tolerance);
        return factor &&
               std::abs(*factor / *diagnosis.factor - 1.0) <= std::max(1e-3, first.tolerance);
      });
  if (every) text += "; every gradient has this factor: look at what the loss is divided by";
  const auto loss = std::find_if(rows.begin(), rows.end(), [](const VerifyRow& row) {
    return row.kind == Observed::kLoss && row.differs();
  });
  if (loss == rows.end() && first.kind == Observed::kGradient && !diagnosis.found()) {
    return text + met_by_the_backward(rows, first);
  }
  if (loss == rows.end() || every) return text;
  text += "; the loss differs too: the forward pass is wrong already";
  const std::vector<double>& right = want(got.step).outputs;
  for (std::size_t layer = 0; layer < std::min(right.size(), got.outputs.size()); ++layer) {
    if (relative_error(got.outputs[layer], right[layer]) <= loss->tolerance) continue;
    text += ", from the output of " + layer_name(layer, right.size()) + " on";
    const std::optional<int> stage = stages_.begins_at(layer);
    if (stage) text += fmt::format(", where stage {} begins", *stage);
    break;
  }
  return text;
}

void Comparison::run() {
  UpdateGain gain(question_.subject);
  run_steps(question_.subject, question_.steps, [&](const StepView& view) {
    const StepValues got = values_of(view, &want(view.step));
    const std::vector<VerifyRow> rows = rows_of(got, gain);
    note(rows);
    if (first_) return true;
    const std::optional<VerifyRow> row = first_of(rows);
    if (!row) return true;
    Diagnosis diagnosis = look_at(*row, view, got);
    look_at_stages(rows, *row, got, diagnosis);
    first_ = {*row, diagnosis.axes, diagnosis.hint + remarks(rows, *row, diagnosis, got)};
    explained_ = diagnosis.found();
    return true;
  });
  if (first_ && !explained_) ask_other_geometries();
}

bool Comparison::differs(const Side& side, const VerifyRow& row) const {
  bool found = false;
  UpdateGain gain(side);
  run_steps(side, row.step, [&](const StepView& view) {
    const StepValues got = values_of(view, &want(view.step));
    found = found || first_of(rows_of(got, gain)).has_value();
    return !found;
  });
  return found;
}

void Comparison::ask_other_geometries() {
  if (!question_.without) return;
  const Mesh mesh = question_.subject.mesh();
  std::vector<std::string> words;
  std::vector<Axis> axes = mesh.order();
  axes.push_back(Axis::kEp);
  for (const Axis axis : axes) {
    if (mesh.degree(axis) == 1) continue;
    const std::optional<Side> side = question_.without(axis);
    if (!side || differs(*side, first_->row)) continue;
    first_->axes.push_back(axis);
    words.push_back(fmt::format("{} = 1", name(axis)));
  }
  if (!words.empty()) first_->hint += fmt::format("; it vanishes with {}", join(words, " or "));
}

VerifyReport Comparison::report() {
  VerifyReport report;
  report.steps = question_.steps;
  report.first = first_;
  for (const auto& [key, row] : worst_) report.rows.push_back(row);
  std::stable_sort(report.rows.begin(), report.rows.end(),
                   [](const auto& a, const auto& b) { return severity(a) > severity(b); });
  report.tolerance = report.rows.front().tolerance;
  report.max_rel = report.rows.front().max_rel;
  return report;
}

}  // namespace

std::string_view name(Observed observed) {
  switch (observed) {
    case Observed::kGradient:
      return "gradient";
    case Observed::kLoss:
      return "loss";
    case Observed::kGradNorm:
      return "grad_norm";
    case Observed::kWeight:
      return "weight";
    case Observed::kRouter:
      return "router";
  }
  return "";
}

VerifyReport verify(const Question& question) {
  Comparison comparison(question);
  comparison.run();
  return comparison.report();
}

}  // namespace quatrain
