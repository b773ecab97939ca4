// SPDX-License-Identifier: Apache-2.0
#include "quatrain/verify/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quatrain/engine/whole_model.h"

namespace quatrain {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kVanishing = 1e-12;

NamedTensors copies_of(ZeroUnits& units, WholeOf what) {
  NamedTensors named;
  for_each_whole(units, what, [&](const ParameterInfo& info, const at::Tensor& whole) {
    named.emplace(info.name, whole.clone());
  });
  return named;
}

double largest(const at::Tensor& x) {
  return x.numel() == 0 ? 0.0 : x.to(at::kDouble).abs().max().item<double>();
}
double largest(const NamedTensors& tensors) {
  double most = 0.0;
  for (const auto& [name, tensor] : tensors) most = std::max(most, largest(tensor));
  return most;
}

double tensor_error(const at::Tensor& got, const at::Tensor& want, double scale) {
  if (got.sizes() != want.sizes()) return kInfinity;
  if (got.numel() == 0) return 0.0;
  const double got_most = largest(got);
  const double want_most = largest(want);
  if (!std::isfinite(got_most) || !std::isfinite(want_most)) return kInfinity;
  if (std::max(got_most, want_most) <= kVanishing * scale) return 0.0;
  return largest(got.to(at::kDouble).sub(want.to(at::kDouble))) / want_most;
}

}  // namespace

NamedTensors whole_weights(ZeroUnits& units) { return copies_of(units, WholeOf::kValues); }
NamedTensors whole_grads(ZeroUnits& units) { return copies_of(units, WholeOf::kGrads); }

std::vector<TensorError> compare(const NamedTensors& got, const NamedTensors& want) {
  const double scale = largest(want);
  std::set<std::string> names;
  for (const auto& [name, tensor] : got) names.insert(name);
  for (const auto& [name, tensor] : want) names.insert(name);
  std::vector<TensorError> errors;
  for (const std::string& name : names) {
    const auto a = got.find(name);
    const auto b = want.find(name);
    const bool both = a != got.end() && b != want.end();
    errors.push_back({name, both ? tensor_error(a->second, b->second, scale) : kInfinity});
  }
  std::stable_sort(errors.begin(), errors.end(), [](const TensorError& a, const TensorError& b) {
    return a.max_rel > b.max_rel;
  });
  return errors;
}

std::set<std::string> vanishing(const NamedTensors& tensors) {
  const double scale = largest(tensors);
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    if (largest(tensor) <= kVanishing * scale) names.insert(name);
  }
  return names;
}

double relative_error(double got, double want) {
  if (!std::isfinite(got) || !std::isfinite(want)) return kInfinity;
  if (want == 0.0) return got == 0.0 ? 0.0 : kInfinity;
  return std::abs(got - want) / std::abs(want);
}

}  // namespace quatrain
