// SPDX-License-Identifier: Apache-2.0
// Keys and values of the tokens decoded so far, in one buffer a layer, filled from the front.
// Latent attention keeps its one rotated key and, as the value, its latent.
// Shapes: B sequences, T new positions, S positions held, K kv heads, d head dim, v a value's.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "quatrain/spec/model_spec.h"

namespace quatrain {

class KvCache {
 public:
  struct Size {
    std::int64_t layers, batch, positions, kv_heads, head_dim;
    std::int64_t value_dim = 0;  // 0: head_dim
  };
  // What a rank's share of the model keeps; `kv_heads`: its own.
  static Size size_of(const ModelSpec& spec, std::int64_t kv_heads, std::int64_t batch,
                      std::int64_t positions);
  // Booked as buffers.
  KvCache(const Size& size, at::ScalarType dtype, at::Device device);

  // Copies keys (after RoPE) and values behind those held; returns views of all, [B, S, K, d] and
  // [B, S, K, v]. BugError when they do not fit.
  std::pair<at::Tensor, at::Tensor> append(std::int64_t layer, const at::Tensor& k_BTKd,
                                           const at::Tensor& v_BTKv);
  std::int64_t capacity() const { return size_.positions; }
  void truncate(std::int64_t length);  // forgets what lies behind; 0 starts anew

 private:
  void allocate(std::size_t layer);

  Size size_;
  at::ScalarType dtype_;
  at::Device device_;
  std::vector<std::int64_t> lengths_;  // a layer, since layers append one after another
  std::vector<at::Tensor> keys_BSKd_;
  std::vector<at::Tensor> values_BSKv_;
};

}  // namespace quatrain
