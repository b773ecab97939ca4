// SPDX-License-Identifier: Apache-2.0
// A layer's buffers are made once, at full length, when it first appends: a rank has some of them.
#include "quatrain/nn/kv_cache.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "quatrain/kernels/memory.h"
#include "quatrain/nn/check.h"

namespace quatrain {

KvCache::KvCache(const Size& size, at::ScalarType dtype, at::Device device)
    : size_(size),
      dtype_(dtype),
      device_(device),
      lengths_(static_cast<std::size_t>(size.layers), 0),
      keys_BSKd_(lengths_.size()),
      values_BSKv_(lengths_.size()) {}

KvCache::Size KvCache::size_of(const ModelSpec& spec, std::int64_t kv_heads, std::int64_t batch,
                               std::int64_t positions) {
  if (!spec.latent) return {spec.layers, batch, positions, kv_heads, spec.head_dim};
  return {
      spec.layers, batch, positions, 1, spec.latent->qk_rope_head_dim, spec.latent->kv_lora_rank};
}

void KvCache::allocate(std::size_t layer) {
  const ScopedMemoryCategory category(MemoryCategory::kBuffers);
  const auto buffer = [&](std::int64_t dim) {
    return at::empty({size_.batch, size_.positions, size_.kv_heads, dim},
                     at::TensorOptions(dtype_).device(device_));
  };
  keys_BSKd_[layer] = buffer(size_.head_dim);
  values_BSKv_[layer] = buffer(size_.value_dim > 0 ? size_.value_dim : size_.head_dim);
}

std::pair<at::Tensor, at::Tensor> KvCache::append(std::int64_t layer, const at::Tensor& k_BTKd,
                                                  const at::Tensor& v_BTKv) {
  const auto i = static_cast<std::size_t>(layer);
  CHECK(i < lengths_.size(), "layer {} of a cache of {}", layer, lengths_.size());
  const std::int64_t begin = lengths_[i];
  const std::int64_t count = k_BTKd.size(1);
  CHECK(begin + count <= capacity(), "{} positions do not fit a cache of {}", begin + count,
        capacity());
  if (!keys_BSKd_[i].defined()) allocate(i);
  keys_BSKd_[i].narrow(1, begin, count).copy_(k_BTKd);
  values_BSKv_[i].narrow(1, begin, count).copy_(v_BTKv);
  lengths_[i] = begin + count;
  return {keys_BSKd_[i].narrow(1, 0, lengths_[i]), values_BSKv_[i].narrow(1, 0, lengths_[i])};
}

void KvCache::truncate(std::int64_t length) {
  for (std::int64_t& held : lengths_) held = std::min(held, length);
}

}  // namespace quatrain
