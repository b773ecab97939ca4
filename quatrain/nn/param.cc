// SPDX-License-Identifier: Apache-2.0
// Flat storage of a unit's parameters and the views into it; initial values from counter-based
// draws, so that every geometry starts with the same weights.
#include "quatrain/nn/param.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/rng.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

std::int64_t product(const std::vector<std::int64_t>& shape) {
  std::int64_t result = 1;
  for (const std::int64_t size : shape) result *= size;
  return result;
}

// Draws that are made at once: a buffer that stays in cache.
constexpr std::int64_t kDrawsAtOnce = 16384;

template <class Real>
void fill_normal(at::Tensor& flat, const RandomStream& stream, double std) {
  const std::int64_t total = flat.numel();
  at::Tensor draws = at::empty({std::min(total, kDrawsAtOnce)},
                               at::TensorOptions(c10::CppTypeToScalarType<Real>::value));
  for (std::int64_t begin = 0; begin < total; begin += kDrawsAtOnce) {
    const std::int64_t count = std::min(total - begin, kDrawsAtOnce);
    const std::span<Real> out(draws.accessor<Real, 1>().data(), static_cast<std::size_t>(count));
    stream.fill_normal(static_cast<std::uint64_t>(begin), out);
    for (Real& x : out) x = static_cast<Real>(x * std);
    flat.narrow(0, begin, count).copy_(draws.narrow(0, 0, count));
  }
}

}  // namespace

ParamUnit::ParamUnit(std::string name, std::vector<ParameterInfo> infos, at::ScalarType dtype,
                     at::Device device)
    : name_(std::move(name)), dtype_(dtype), device_(device) {
  params_.reserve(infos.size());
  for (ParameterInfo& info : infos) {
    Param& param = params_.emplace_back();
    param.local_shape = info.shape;
    param.info = std::move(info);
    const std::int64_t count = product(param.local_shape);
    offsets_.push_back(numel_);
    grad_offsets_.push_back(trainable_numel_);
    numel_ += count;
    if (param.info.trainable) trainable_numel_ += count;
  }
}

void ParamUnit::allocate(bool with_grads) {
  const auto options = at::TensorOptions(dtype_).device(device_);
  {
    const ScopedMemoryCategory category(MemoryCategory::kParams);
    flat_value_ = at::empty({numel_}, options);
  }
  flat_grad_ = at::Tensor();
  if (with_grads && trainable_numel_ > 0) {
    const ScopedMemoryCategory category(MemoryCategory::kGrads);
    flat_grad_ = at::zeros({trainable_numel_}, options.dtype(wide(dtype_)));
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {
    Param& param = params_[i];
    const std::int64_t count = product(param.local_shape);
    param.value = flat_value_.narrow(0, offsets_[i], count).view(param.local_shape);
    const bool has_grad = flat_grad_.defined() && param.info.trainable;
    param.grad = has_grad ? flat_grad_.narrow(0, grad_offsets_[i], count).view(param.local_shape)
                          : at::Tensor();
  }
}

void ParamUnit::zero_grads() {
  if (flat_grad_.defined()) flat_grad_.zero_();
}

Param& ParamUnit::param(std::string_view name) {
  const auto found = std::find_if(params_.begin(), params_.end(),
                                  [&](const Param& p) { return p.info.name == name; });
  CHECK(found != params_.end(), "unit {} has no parameter \"{}\"", name_, name);
  return *found;
}

std::size_t ParamUnit::index(const Param& param) const {
  const std::ptrdiff_t position = &param - params_.data();
  CHECK(position >= 0 && position < static_cast<std::ptrdiff_t>(params_.size()),
        "parameter \"{}\" is not of unit {}", param.info.name, name_);
  return static_cast<std::size_t>(position);
}

std::int64_t ParamUnit::offset(const Param& param) const { return offsets_[index(param)]; }

std::int64_t ParamUnit::grad_offset(const Param& param) const {
  CHECK(param.info.trainable, "\"{}\" is frozen", param.info.name);
  return grad_offsets_[index(param)];
}

at::Tensor ParamUnit::fused_value(const Param& first, const Param& last) const {
  return fused(flat_value_, offset(first), first, last);
}

at::Tensor ParamUnit::fused_grad(const Param& first, const Param& last) const {
  return fused(flat_grad_, grad_offset(first), first, last);
}

at::Tensor ParamUnit::fused(const at::Tensor& flat, std::int64_t begin, const Param& first,
                            const Param& last) const {
  CHECK(flat.defined(), "unit {} is not allocated", name_);
  const std::size_t from = index(first);
  const std::size_t to = index(last);
  CHECK(from <= to, "\"{}\" lies after \"{}\"", first.info.name, last.info.name);
  std::int64_t rows = 0;
  for (std::size_t i = from; i <= to; ++i) {
    const auto& shape = params_[i].local_shape;
    CHECK(shape.size() == first.local_shape.size() &&
              std::equal(shape.begin() + 1, shape.end(), first.local_shape.begin() + 1),
          "\"{}\" and \"{}\" differ in more than their rows", first.info.name,
          params_[i].info.name);
    rows += shape[0];
  }
  std::vector<std::int64_t> shape = first.local_shape;
  shape[0] = rows;
  return flat.narrow(0, begin, product(shape)).view(shape);
}

void initialise(ParamUnit& unit, std::uint64_t seed) {
  for (Param& param : unit.params()) {
    CHECK(param.value.defined(), "unit {} is not allocated", unit.name());
    CHECK(param.local_shape == param.info.shape, "\"{}\" is cut", param.info.name);
    switch (param.info.init) {
      case Init::kZeros:
        param.value.zero_();
        break;
      case Init::kOnes:
        param.value.fill_(1.0);
        break;
      case Init::kNormal:
      case Init::kNormalScaledByDepth: {
        const RandomStream stream(seed, param.info.name);
        at::Tensor flat = param.value.view({-1});
        if (unit.dtype() == at::kDouble) {
          fill_normal<double>(flat, stream, param.info.init_std);
        } else {
          fill_normal<float>(flat, stream, param.info.init_std);
        }
      }
    }
  }
}

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat32:
      return at::kFloat;
    case Dtype::kBFloat16:
      return at::kBFloat16;
    case Dtype::kFloat64:
      return at::kDouble;
  }
  CHECK(false, "dtype {}", static_cast<int>(dtype));
  return at::kFloat;
}

at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace quatrain
