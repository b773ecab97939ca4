// SPDX-License-Identifier: Apache-2.0
// Flat storage of a unit's parameters and the views into it.
#include "quatrain/nn/param.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "quatrain/kernels/memory.h"
#include "quatrain/mesh/shape.h"
#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

at::Tensor part(const at::Tensor& flat, std::int64_t begin, const Param& param) {
  if (!flat.defined()) return {};
  return flat.narrow(0, begin, elements(param.local_shape)).view(param.local_shape);
}

}  // namespace

ParamUnit::ParamUnit(std::string name, std::vector<ParameterInfo> infos, at::ScalarType dtype,
                     at::Device device)
    : ParamUnit(std::move(name), whole_parameters(std::move(infos)), dtype, device) {}

ParamUnit::ParamUnit(std::string name, std::vector<LocalParameter> locals, at::ScalarType dtype,
                     at::Device device)
    : name_(std::move(name)), dtype_(dtype), device_(device) {
  params_.reserve(locals.size());
  for (LocalParameter& local : locals) {
    Param& param = params_.emplace_back();
    param.info = std::move(local.info);
    param.begin = std::move(local.box.begin);
    param.local_shape = std::move(local.box.size);
    param.replicas = local.replicas;
    param.partial_grad = local.partial_grad;
    param.counted = local.counted;
    const std::int64_t count = elements(param.local_shape);
    offsets_.push_back(numel_);
    grad_offsets_.push_back(trainable_numel_);
    numel_ += count;
    if (param.info.trainable) trainable_numel_ += count;
  }
}

void ParamUnit::allocate(bool with_grads) {
  const auto options = at::TensorOptions(dtype_).device(device_);
  at::Tensor values;
  {
    const ScopedMemoryCategory category(MemoryCategory::kParams);
    values = at::empty({numel_}, options);
  }
  at::Tensor grads;
  if (with_grads && trainable_numel_ > 0) {
    const ScopedMemoryCategory category(MemoryCategory::kGrads);
    grads = at::zeros({trainable_numel_}, options.dtype(wide(dtype_)));
  }
  set_values(std::move(values));
  set_grads(std::move(grads));
}

void ParamUnit::set_values(at::Tensor flat) {
  CHECK(!flat.defined() || (flat.numel() == numel_ && flat.scalar_type() == dtype_),
        "unit {}: values of {} elements", name_, flat.defined() ? flat.numel() : 0);
  flat_value_ = std::move(flat);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    params_[i].value = part(flat_value_, offsets_[i], params_[i]);
  }
}

void ParamUnit::set_grads(at::Tensor flat) {
  CHECK(!flat.defined() || (flat.numel() == trainable_numel_ && flat.scalar_type() == wide(dtype_)),
        "unit {}: gradients of {} elements", name_, flat.defined() ? flat.numel() : 0);
  flat_grad_ = std::move(flat);
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].info.trainable) params_[i].grad = part(flat_grad_, grad_offsets_[i], params_[i]);
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
  return flat.narrow(0, begin, elements(shape)).view(shape);
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
