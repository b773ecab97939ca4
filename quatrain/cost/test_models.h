// SPDX-License-Identifier: Apache-2.0
// Small models of every dense family, for the tests of this folder.
#pragma once
#include "quatrain/cost/walk.h"
#include "quatrain/spec/test_models.h"

namespace quatrain {

inline ModelSpec llama_like() {
  ModelSpec m;
  m.name = "tiny";
  m.vocab = 251;
  m.hidden = 64;
  m.layers = 3;
  m.heads = 8;
  m.kv_heads = 2;
  m.head_dim = 8;
  m.ffn = 176;
  m.max_positions = 64;
  return m;
}

inline ModelSpec gpt2_like() { return as_gpt2(llama_like()); }
inline ModelSpec qwen2_like() { return as_qwen2(llama_like()); }
inline ModelSpec qwen3_like() { return as_qwen3(llama_like()); }

inline WorkShape shape_of(std::int64_t batch, std::int64_t seq) {
  WorkShape shape;
  shape.batch = batch;
  shape.seq = seq;
  return shape;
}

}  // namespace quatrain
