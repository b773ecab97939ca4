// SPDX-License-Identifier: Apache-2.0
// Small models of every dense family, for the tests of this folder.
#pragma once
#include "quatrain/cost/walk.h"

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

inline ModelSpec gpt2_like() {
  ModelSpec m = llama_like();
  m.family = Family::kGpt2;
  m.kv_heads = m.heads;
  m.norm = NormKind::kLayerNorm;
  m.mlp = MlpKind::kGelu;
  m.position = PositionKind::kLearned;
  m.qkv_bias = m.out_bias = m.mlp_bias = true;
  m.tied = true;
  return m;
}

inline ModelSpec qwen2_like() {
  ModelSpec m = llama_like();
  m.family = Family::kQwen2;
  m.qkv_bias = true;
  return m;
}

inline ModelSpec qwen3_like() {
  ModelSpec m = llama_like();
  m.family = Family::kQwen3;
  m.qk_norm = true;
  m.head_dim = 16;
  return m;
}

inline WorkShape shape_of(std::int64_t batch, std::int64_t seq) {
  WorkShape shape;
  shape.batch = batch;
  shape.seq = seq;
  return shape;
}

}  // namespace quatrain
