// SPDX-License-Identifier: Apache-2.0
// Shapes: B sequences, T positions, N rows, H heads, d head dim, E experts.
#include "quatrain/model/testing.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace quatrain {

ReferenceModel::ReferenceModel(Model& model, const Pass& pass) : spec_(model.spec()), pass_(pass) {
  for (const auto& unit : model.units()) testing::add_leaves(leaves, *unit);
}

at::Tensor ReferenceModel::logits() {
  router_losses = at::Tensor();
  if (spec_.experts) loads_LE = at::zeros({spec_.layers, spec_.experts->num_experts}, at::kLong);
  const bool gpt2 = spec_.family == Family::kGpt2;
  const std::string top = gpt2 ? "transformer." : "model.";
  const at::Tensor table = leaves.at(top + (gpt2 ? "wte.weight" : "embed_tokens.weight"));
  at::Tensor x = at::embedding(table, pass_.tokens_BT);
  if (gpt2) x = x + at::embedding(leaves.at(top + "wpe.weight"), pass_.positions_BT);
  for (std::int64_t i = 0; i < spec_.layers; ++i) {
    x = block(x, top + (gpt2 ? "h." : "layers.") + std::to_string(i) + ".", i);
  }
  x = norm(x, top + (gpt2 ? "ln_f" : "norm"));
  return x.matmul((spec_.tied ? table : leaves.at("lm_head.weight")).t());
}

at::Tensor ReferenceModel::loss() {
  const at::Tensor tokens = testing::ref_loss(logits().view({-1, spec_.vocab}),
                                              pass_.labels_BT.reshape({-1}), pass_.z_loss);
  return pass_.loss_scale * (router_losses.defined() ? tokens + router_losses : tokens);
}

at::Tensor ReferenceModel::norm(const at::Tensor& x, const std::string& name) {
  const auto bias = leaves.find(name + ".bias");
  return testing::ref_norm(x, leaves.at(name + ".weight"),
                           bias == leaves.end() ? at::Tensor() : bias->second, spec_.norm_eps);
}

at::Tensor ReferenceModel::project(const at::Tensor& x, const std::string& name) {
  const at::Tensor y = x.matmul(leaves.at(name + ".weight").t());
  const auto bias = leaves.find(name + ".bias");
  return bias == leaves.end() ? y : y + bias->second;
}

at::Tensor ReferenceModel::attention(const at::Tensor& x, const std::string& in,
                                     std::int64_t layer) {
  const auto heads = [&](const char* name) {
    return project(x, in + name).view({x.size(0), x.size(1), -1, spec_.head_dim});
  };
  at::Tensor q = heads("q_proj");
  at::Tensor k = heads("k_proj");
  if (spec_.qk_norm) {
    q = norm(q, in + "q_norm");
    k = norm(k, in + "k_norm");
  }
  if (spec_.position == PositionKind::kRope) {
    q = testing::ref_rope(q, pass_.positions_BT, spec_.rope.theta);
    k = testing::ref_rope(k, pass_.positions_BT, spec_.rope.theta);
  }
  const at::Tensor out =
      testing::ref_attention(q, k, heads("v_proj"), spec_.layer_window(layer), pass_.documents_BS);
  return project(out.reshape({x.size(0), x.size(1), -1}),
                 in + (spec_.family == Family::kGpt2 ? "c_proj" : "o_proj"));
}

at::Tensor ReferenceModel::rope_neighbours(const at::Tensor& x_BTHd) {
  const std::int64_t d = x_BTHd.size(3);
  return testing::ref_rope(at::cat({x_BTHd.slice(3, 0, d, 2), x_BTHd.slice(3, 1, d, 2)}, 3),
                           pass_.positions_BT, spec_.rope.theta);
}

at::Tensor ReferenceModel::latent_attention(const at::Tensor& x, const std::string& in) {
  const LatentAttention& l = *spec_.latent;
  const auto latent_norm = [&](const at::Tensor& y, const std::string& name) {
    return testing::ref_norm(y, leaves.at(in + name + ".weight"), {}, 1e-6);
  };
  const auto heads = [&](const at::Tensor& y) {
    return y.view({x.size(0), x.size(1), spec_.heads, -1});
  };
  const at::Tensor q_all =
      heads(l.q_lora_rank > 0 ? project(latent_norm(project(x, in + "q_a_proj"), "q_a_layernorm"),
                                        in + "q_b_proj")
                              : project(x, in + "q_proj"));
  const at::Tensor kv_a = project(x, in + "kv_a_proj_with_mqa");
  const at::Tensor kv = heads(
      project(latent_norm(kv_a.narrow(2, 0, l.kv_lora_rank), "kv_a_layernorm"), in + "kv_b_proj"));
  const std::int64_t n = l.qk_nope_head_dim, r = l.qk_rope_head_dim;
  const at::Tensor k_rope = rope_neighbours(kv_a.narrow(2, l.kv_lora_rank, r).unsqueeze(2));
  const at::Tensor q = at::cat({q_all.narrow(3, 0, n), rope_neighbours(q_all.narrow(3, n, r))}, 3);
  const at::Tensor k = at::cat({kv.narrow(3, 0, n), k_rope.expand({-1, -1, spec_.heads, -1})}, 3);
  const at::Tensor out =
      testing::ref_attention(q, k, kv.narrow(3, n, l.v_head_dim), 0, pass_.documents_BS);
  return project(out.reshape({x.size(0), x.size(1), -1}), in + "o_proj");
}

at::Tensor ReferenceModel::gated(const at::Tensor& x, const std::string& in) {
  const bool mixtral = spec_.family == Family::kMixtral;
  const at::Tensor gate = project(x, in + (mixtral ? "w1" : "gate_proj"));
  const at::Tensor up = project(x, in + (mixtral ? "w3" : "up_proj"));
  return project(at::sigmoid(gate) * gate * up, in + (mixtral ? "w2" : "down_proj"));
}

std::vector<std::int64_t> ReferenceModel::best(const at::Tensor& keys_E, std::int64_t count) {
  const at::Tensor order = std::get<1>(keys_E.sort(true, 0, true));
  std::vector<std::int64_t> chosen;
  for (std::int64_t j = 0; j < count; ++j) chosen.push_back(order[j].item<std::int64_t>());
  return chosen;
}

std::vector<std::int64_t> ReferenceModel::choose(const at::Tensor& scores_E,
                                                 const std::string& in) {
  const Experts& experts = *spec_.experts;
  at::Tensor keys = scores_E.detach().clone();
  if (experts.selection_bias) {
    keys = keys + leaves.at(in + "gate.e_score_correction_bias").detach();
  }
  const std::int64_t size = experts.num_experts / experts.num_groups;
  const at::Tensor groups = keys.view({experts.num_groups, size});
  const at::Tensor two = std::get<0>(groups.sort(true, 1, true)).narrow(1, 0, 2).sum(1);
  at::Tensor allowed = at::zeros_like(groups);
  for (const std::int64_t g : best(two, experts.top_k_groups)) allowed[g].fill_(1.0);
  return best(keys.masked_fill(allowed.view({-1}).eq(0), -1e9), experts.top_k);
}

at::Tensor ReferenceModel::experts(const at::Tensor& x_BTD, const std::string& in,
                                   std::int64_t layer) {
  const Experts& experts = *spec_.experts;
  const at::Tensor x = x_BTD.reshape({-1, spec_.hidden});
  const at::Tensor logits = project(x, in + "gate");
  const bool sigmoid = experts.score == RouterScore::kSigmoid;
  const at::Tensor scores = sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
  std::vector<at::Tensor> rows;
  const std::int64_t seq = x_BTD.size(1);
  at::Tensor counts = at::zeros({x_BTD.size(0), experts.num_experts}, at::kDouble);
  for (std::int64_t n = 0; n < x.size(0); ++n) {
    const std::vector<std::int64_t> chosen = choose(scores[n], in);
    at::Tensor sum = at::zeros({}, at::kDouble);
    at::Tensor y = at::zeros({spec_.hidden}, at::kDouble);
    for (const std::int64_t e : chosen) {
      sum = sum + scores[n][e];
      y = y + scores[n][e] * gated(x.narrow(0, n, 1), in + "experts." + std::to_string(e) + ".")[0];
      counts[n / seq][e] += 1.0;
      loads_LE[layer][e] += 1;
    }
    rows.push_back(y * experts.routed_scaling / (experts.normalise_top_k ? sum : at::ones({})));
  }
  const at::Tensor p = scores / scores.sum(1, true);
  const double f =
      static_cast<double>(experts.num_experts) / static_cast<double>(experts.top_k * seq);
  const at::Tensor balance =
      (f * counts * p.view({x_BTD.size(0), seq, -1}).mean(1)).sum() * static_cast<double>(seq);
  const at::Tensor lost =
      experts.aux_loss_coef * balance + pass_.router_z_loss * logits.logsumexp(1).pow(2).sum();
  router_losses = router_losses.defined() ? router_losses + lost : lost;
  at::Tensor y = at::stack(rows);
  for (const auto& [name, weight] : leaves) {  // experts that no row visits have a gradient: zero
    if (name.starts_with(in + "experts.")) y = y + 0.0 * weight.sum();
  }
  if (experts.num_shared > 0) y = y + gated(x, in + "shared_experts.");
  return y.view_as(x_BTD);
}

at::Tensor ReferenceModel::block(const at::Tensor& x, const std::string& in, std::int64_t layer) {
  const bool gpt2 = spec_.family == Family::kGpt2;
  const at::Tensor n1 = norm(x, in + (gpt2 ? "ln_1" : "input_layernorm"));
  const at::Tensor h =
      x + (spec_.latent ? latent_attention(n1, in + "self_attn.")
                        : attention(n1, in + (gpt2 ? "attn." : "self_attn."), layer));
  const at::Tensor n2 = norm(h, in + (gpt2 ? "ln_2" : "post_attention_layernorm"));
  if (spec_.layer_is_sparse(layer)) {
    const bool mixtral = spec_.family == Family::kMixtral;
    return h + experts(n2, in + (mixtral ? "block_sparse_moe." : "mlp."), layer);
  }
  const at::Tensor up = project(n2, in + (gpt2 ? "mlp.c_fc" : "mlp.up_proj"));
  const at::Tensor gate = gpt2 ? up : project(n2, in + "mlp.gate_proj");
  return h + project(testing::ref_mlp_activation(spec_, gate, up),
                     in + (gpt2 ? "mlp.c_proj" : "mlp.down_proj"));
}

}  // namespace quatrain
