// SPDX-License-Identifier: Apache-2.0
// Keys and values of the tokens decoded so far, in one buffer a layer, filled from the front.
// Shapes: B sequences, T new positions, S positions held, K kv heads, d head dim.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace quatrain {

class KvCache {
 public:
  struct Size {
    std::int64_t layers, batch, positions, kv_heads, head_dim;
  };
  // Booked as buffers.
  KvCache(const Size& size, at::ScalarType dtype, at::Device device);

  // Copies keys (after RoPE) and values behind those held; returns views of all, [B, S, K, d].
  // BugError when they do not fit.
  std::pair<at::Tensor, at::Tensor> append(std::int64_t layer, const at::Tensor& k_BTKd,
                                           const at::Tensor& v_BTKd);
  std::int64_t capacity() const { return size_.positions; }
  void truncate(std::int64_t length);  // forgets what lies behind; 0 starts anew

 private:
  void allocate(std::size_t layer);

  Size size_;
  at::ScalarType dtype_;
  at::Device device_;
  std::vector<std::int64_t> lengths_;  // a layer, since layers append one after another
  std::vector<at::Tensor> keys_BSKd_;
  std::vector<at::Tensor> values_BSKd_;
};

}  // namespace quatrain
