// SPDX-License-Identifier: Apache-2.0
// The families with experts as changes to a Llama of any size, for tests: four experts, two for
// each row, of half the width.
#pragma once
#include "quatrain/spec/model_spec.h"
#include "quatrain/spec/test_models.h"

namespace quatrain {

inline ModelSpec as_mixtral(ModelSpec m) {
  m.family = Family::kMixtral;
  m.experts = Experts{.num_experts = 4, .top_k = 2, .ffn = m.ffn / 2};
  m.experts->aux_loss_coef = 0.13;
  return m;
}
// Layer 0 is dense.
inline ModelSpec as_qwen3_moe(ModelSpec m) {
  m = as_qwen3(as_mixtral(std::move(m)));
  m.family = Family::kQwen3Moe;
  m.experts->normalise_top_k = false;
  m.experts->dense_layers = {0};
  return m;
}
inline ModelSpec as_deepseek(ModelSpec m) {
  m = as_mixtral(std::move(m));
  m.family = Family::kDeepseekV3;
  m.kv_heads = m.heads;
  m.latent = LatentAttention{.q_lora_rank = 9,
                             .kv_lora_rank = 10,
                             .qk_nope_head_dim = 5,
                             .qk_rope_head_dim = 4,
                             .v_head_dim = 3};
  m.head_dim = 9;
  m.window = 0;
  m.window_layers.clear();
  Experts& experts = *m.experts;
  experts.num_shared = 2;
  experts.first_dense = 1;
  experts.score = RouterScore::kSigmoid;
  experts.routed_scaling = 1.7;
  experts.num_groups = 2;
  experts.top_k_groups = 1;
  experts.selection_bias = true;
  return m;
}
inline ModelSpec with_whole_queries(ModelSpec m) {
  m.latent->q_lora_rank = 0;
  return m;
}

}  // namespace quatrain
