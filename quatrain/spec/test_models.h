// SPDX-License-Identifier: Apache-2.0
// The dense families as changes to a Llama of any size, for tests.
#pragma once
#include <string>
#include <utility>

#include "quatrain/spec/model_spec.h"

namespace quatrain {

inline ModelSpec as_gpt2(ModelSpec m) {
  m.family = Family::kGpt2;
  m.kv_heads = m.heads;
  m.norm = NormKind::kLayerNorm;
  m.mlp = MlpKind::kGelu;
  m.position = PositionKind::kLearned;
  m.qkv_bias = m.out_bias = m.mlp_bias = true;
  m.tied = true;
  return m;
}
inline ModelSpec as_qwen2(ModelSpec m) {
  m.family = Family::kQwen2;
  m.qkv_bias = true;
  return m;
}
// Head norms, and heads wider than the hidden size over their number.
inline ModelSpec as_qwen3(ModelSpec m) {
  m.family = Family::kQwen3;
  m.qk_norm = true;
  m.head_dim *= 2;
  return m;
}
inline ModelSpec named(ModelSpec m, std::string name) {
  m.name = std::move(name);
  return m;
}

}  // namespace quatrain
