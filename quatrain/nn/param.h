// SPDX-License-Identifier: Apache-2.0
// What layers compute with, and the unit that owns the storage of several parameters.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "quatrain/spec/tensor_split.h"

namespace quatrain {

// `value` and `grad` are views that exist only while the unit holds values, or gradients.
struct Param {
  ParameterInfo info;
  // This rank's piece under tp: its first element in the global tensor, and its shape.
  std::vector<std::int64_t> begin, local_shape;
  int replicas = 1;           // neighbours along tp that hold this piece
  bool partial_grad = false;  // `grad` is a term of a sum over those, until it is reduced
  bool counted = true;        // in norms: one of the replicas is
  at::Tensor value;           // compute dtype
  at::Tensor grad;            // wide(dtype), accumulated with +=; undefined when not trainable
};

// The schedulable piece of ZeRO: the embedding, one block, the head. Its parameters lie end to end,
// in the order of the list, in one flat buffer each for values and gradients (of the trainable ones
// alone); a ZeRO cut falls on their row boundaries.
class ParamUnit {
 public:
  // Parameters are addressable (and stay so) from construction; storage comes with allocate().
  ParamUnit(std::string name, std::vector<LocalParameter> locals, at::ScalarType dtype,
            at::Device device);
  // Of whole parameters.
  ParamUnit(std::string name, std::vector<ParameterInfo> infos, at::ScalarType dtype,
            at::Device device);

  // Allocates values (and zeroed gradients when `with_grads`) and points the Params into them.
  void allocate(bool with_grads);
  // Points the Params into `flat`, [numel()] in dtype(), or [trainable_numel()] in its wide dtype;
  // undefined: they hold none. How ZeRO gathers, accumulates and frees.
  void set_values(at::Tensor flat);
  void set_grads(at::Tensor flat);
  void zero_grads();

  const std::string& name() const { return name_; }
  std::span<Param> params() { return params_; }
  std::span<const Param> params() const { return params_; }
  // Whether these are a layer's routed experts, which the ranks of the expert view share.
  bool of_experts() const { return params_.front().info.expert >= 0; }
  Param& param(std::string_view name);  // BugError when it has none of that name
  std::int64_t numel() const { return numel_; }
  std::int64_t trainable_numel() const { return trainable_numel_; }
  std::int64_t offset(const Param& param) const;       // of its first element in flat_value()
  std::int64_t grad_offset(const Param& param) const;  // in flat_grad(); trainable ones only
  at::Tensor& flat_value() { return flat_value_; }
  at::Tensor& flat_grad() { return flat_grad_; }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }

  // [rows of all, D]: neighbouring matrices (q, k, v; gate, up) as one, or vectors as one vector.
  // Views; fused_grad needs all of them trainable.
  at::Tensor fused_value(const Param& first, const Param& last) const;
  at::Tensor fused_grad(const Param& first, const Param& last) const;

 private:
  std::size_t index(const Param& param) const;
  at::Tensor fused(const at::Tensor& flat, std::int64_t begin, const Param& first,
                   const Param& last) const;
  std::string name_;
  std::vector<Param> params_;
  std::vector<std::int64_t> offsets_;
  std::vector<std::int64_t> grad_offsets_;
  std::int64_t numel_ = 0;
  std::int64_t trainable_numel_ = 0;
  at::ScalarType dtype_;
  at::Device device_;
  at::Tensor flat_value_;
  at::Tensor flat_grad_;
};

at::ScalarType scalar_type(Dtype dtype);
at::ScalarType wide(at::ScalarType dtype);  // float32 for bf16 and float32, float64 for float64

}  // namespace quatrain
