// SPDX-License-Identifier: Apache-2.0
// Walks a ModelSpec in the order of the forward pass and lists its parameters. Column-parallel
// matrices are cut along their outputs, row-parallel ones along their inputs (Shoeybi et al.,
// arXiv:1909.08053, section 3). Letters: V vocab, D hidden, H heads, K kv heads, d head_dim, F ffn.
#include "quatrain/spec/parameters.h"

#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "quatrain/base/text.h"

namespace quatrain {
namespace {

ShardSpec cut(Axis axis, int dim, std::int64_t grain = 1) {
  return {{{axis, Shard{.dim = dim, .grain = grain}}}};
}

class Lister {
 public:
  explicit Lister(const ModelSpec& model) : model_(model) {}

  std::vector<ParameterInfo> run(const WantedBlock& wanted) {
    layer_ = -1;
    const std::string top = is_gpt2() ? "transformer." : "model.";
    embedding(top);
    for (layer_ = 0; layer_ < model_.layers; ++layer_) {
      if (wanted(layer_)) block(top);
    }
    norm(top + (is_gpt2() ? "ln_f" : "norm"), model_.hidden);
    if (!model_.tied) matrix("lm_head.weight", model_.vocab, model_.hidden, cut(Axis::kTp, 0));
    return std::move(list_);
  }

 private:
  bool is_gpt2() const { return model_.family == Family::kGpt2; }

  ParameterInfo& add(std::string name, std::vector<std::int64_t> shape, ShardSpec placement,
                     Init init) {
    ParameterInfo& info = list_.emplace_back();
    info.name = std::move(name);
    info.decay = shape.size() >= 2;
    info.shape = std::move(shape);
    info.placement = std::move(placement);
    info.layer = layer_;
    info.init = init;
    info.init_std =
        init == Init::kNormal || init == Init::kNormalScaledByDepth ? model_.init_std : 0.0;
    if (init == Init::kNormalScaledByDepth) {
      info.init_std /= std::sqrt(2.0 * static_cast<double>(model_.layers));
    }
    info.expert = expert_;
    return info;
  }
  ParameterInfo& matrix(std::string name, std::int64_t out, std::int64_t in,
                        ShardSpec placement = {}, Init init = Init::kNormal) {
    return add(std::move(name), {out, in}, std::move(placement), init);
  }
  ParameterInfo& vector(std::string name, std::int64_t size, ShardSpec placement = {},
                        Init init = Init::kZeros) {
    return add(std::move(name), {size}, std::move(placement), init);
  }
  Init output_init() const {
    return model_.init_scale_by_depth ? Init::kNormalScaledByDepth : Init::kNormal;
  }
  // A matrix that writes to the residual stream, cut along its inputs; its bias is added once.
  void output(const std::string& name, std::int64_t in, ShardSpec placement, bool bias) {
    auto& weight = matrix(name + ".weight", model_.hidden, in, std::move(placement), output_init());
    if (is_gpt2()) weight.hub = {.tensor = name + ".weight", .transposed = true};
    if (bias) vector(name + ".bias", model_.hidden).meets = Meets::kRows;
  }
  void norm(const std::string& name, std::int64_t size) {
    vector(name + ".weight", size, {}, Init::kOnes).meets = Meets::kRows;
    if (model_.norm == NormKind::kLayerNorm) vector(name + ".bias", size).meets = Meets::kRows;
  }

  void embedding(const std::string& top) {
    matrix(top + (is_gpt2() ? "wte.weight" : "embed_tokens.weight"), model_.vocab, model_.hidden,
           cut(Axis::kTp, 0));
    if (model_.position == PositionKind::kLearned) {
      matrix(top + "wpe.weight", model_.max_positions, model_.hidden).meets = Meets::kRows;
    }
  }

  void block(const std::string& top) {
    const std::string in = fmt::format("{}{}.{}.", top, is_gpt2() ? "h" : "layers", layer_);
    norm(in + (is_gpt2() ? "ln_1" : "input_layernorm"), model_.hidden);
    if (model_.latent) {
      latent_attention(in + "self_attn.", *model_.latent);
    } else {
      attention(in + (is_gpt2() ? "attn." : "self_attn."));
    }
    norm(in + (is_gpt2() ? "ln_2" : "post_attention_layernorm"), model_.hidden);
    if (model_.layer_is_sparse(layer_)) {
      mixture(in + (model_.family == Family::kMixtral ? "block_sparse_moe." : "mlp."));
    } else if (model_.mlp == MlpKind::kGelu) {
      gelu_mlp(in + "mlp.");
    } else {
      swiglu(in + "mlp.", model_.ffn, Axis::kTp, model_.mlp_bias);
    }
  }

  void attention(const std::string& in) {
    const std::int64_t d = model_.head_dim;
    const std::int64_t q = model_.heads * d;
    const std::int64_t kv = model_.kv_heads * d;
    const std::pair<const char*, std::int64_t> projections[] = {
        {"q_proj", q}, {"k_proj", kv}, {"v_proj", kv}};
    for (bool bias : {false, true}) {
      if (bias && !model_.qkv_bias) continue;
      std::int64_t begin = 0;
      for (const auto& [proj, rows] : projections) {
        const std::string suffix = bias ? ".bias" : ".weight";
        ParameterInfo& info =
            bias ? vector(in + proj + suffix, rows, cut(Axis::kTp, 0, d))
                 : matrix(in + proj + suffix, rows, model_.hidden, cut(Axis::kTp, 0, d));
        if (is_gpt2()) info.hub = {in + "c_attn" + suffix, !bias, begin, rows};
        begin += rows;
      }
    }
    if (model_.qk_norm) {
      vector(in + "q_norm.weight", d, {}, Init::kOnes);
      vector(in + "k_norm.weight", d, {}, Init::kOnes);
    }
    output(in + (is_gpt2() ? "c_proj" : "o_proj"), q, cut(Axis::kTp, 1, d), model_.out_bias);
  }

  // DeepSeek-V2, arXiv:2405.04434, section 2.1: the compressions are whole on every rank and read
  // the residual stream's rows; only what follows them is cut by heads.
  void latent_attention(const std::string& in, const LatentAttention& latent) {
    const std::int64_t qk = latent.qk_nope_head_dim + latent.qk_rope_head_dim;
    const std::int64_t kv = latent.qk_nope_head_dim + latent.v_head_dim;
    const std::int64_t rank = latent.kv_lora_rank;
    if (latent.q_lora_rank > 0) {
      matrix(in + "q_a_proj.weight", latent.q_lora_rank, model_.hidden).meets = Meets::kRows;
      vector(in + "q_a_layernorm.weight", latent.q_lora_rank, {}, Init::kOnes).meets = Meets::kRows;
      matrix(in + "q_b_proj.weight", model_.heads * qk, latent.q_lora_rank, cut(Axis::kTp, 0, qk));
    } else {
      matrix(in + "q_proj.weight", model_.heads * qk, model_.hidden, cut(Axis::kTp, 0, qk));
    }
    matrix(in + "kv_a_proj_with_mqa.weight", rank + latent.qk_rope_head_dim, model_.hidden).meets =
        Meets::kRows;
    vector(in + "kv_a_layernorm.weight", rank, {}, Init::kOnes).meets = Meets::kRows;
    matrix(in + "kv_b_proj.weight", model_.heads * kv, rank, cut(Axis::kTp, 0, kv));
    output(in + "o_proj", model_.heads * latent.v_head_dim, cut(Axis::kTp, 1, latent.v_head_dim),
           model_.out_bias);
  }

  void gelu_mlp(const std::string& in) {
    matrix(in + "c_fc.weight", model_.ffn, model_.hidden, cut(Axis::kTp, 0)).hub = {
        .tensor = in + "c_fc.weight", .transposed = true};
    if (model_.mlp_bias) vector(in + "c_fc.bias", model_.ffn, cut(Axis::kTp, 0));
    output(in + "c_proj", model_.ffn, cut(Axis::kTp, 1), model_.mlp_bias);
  }

  void swiglu(const std::string& in, std::int64_t width, Axis axis, bool bias) {
    const bool mixtral = expert_ >= 0 && model_.family == Family::kMixtral;
    const std::string gate = in + (mixtral ? "w1" : "gate_proj");
    const std::string up = in + (mixtral ? "w3" : "up_proj");
    matrix(gate + ".weight", width, model_.hidden, cut(axis, 0));
    matrix(up + ".weight", width, model_.hidden, cut(axis, 0));
    if (bias) {
      vector(gate + ".bias", width, cut(axis, 0));
      vector(up + ".bias", width, cut(axis, 0));
    }
    output(in + (mixtral ? "w2" : "down_proj"), width, cut(axis, 1), bias);
  }

  void mixture(const std::string& in) {
    const Experts& experts = *model_.experts;
    matrix(in + "gate.weight", experts.num_experts, model_.hidden).meets = Meets::kAll;
    if (experts.selection_bias) {  // moved by the load balance, not by a gradient
      ParameterInfo& bias = vector(in + "gate.e_score_correction_bias", experts.num_experts);
      bias.meets = Meets::kAll;
      bias.trainable = false;
    }
    for (expert_ = 0; expert_ < experts.num_experts; ++expert_) {
      swiglu(fmt::format("{}experts.{}.", in, expert_), experts.ffn, Axis::kEtp, false);
    }
    expert_ = -1;
    if (experts.num_shared > 0) {
      swiglu(in + "shared_experts.", experts.ffn * experts.num_shared, Axis::kTp, false);
    }
  }

  const ModelSpec& model_;
  std::int64_t layer_ = -1;
  std::int64_t expert_ = -1;
  std::vector<ParameterInfo> list_;
};

}  // namespace

std::int64_t ParameterInfo::numel() const {
  std::int64_t product = 1;
  for (std::int64_t size : shape) product *= size;
  return product;
}

std::vector<ParameterInfo> parameters(const ModelSpec& model) {
  return parameters(model, [](std::int64_t) { return true; });
}

std::vector<ParameterInfo> parameters(const ModelSpec& model, const WantedBlock& wanted) {
  return Lister(model).run(wanted);
}

std::int64_t num_parameters(const ModelSpec& model) {
  std::int64_t sum = 0;
  for (const ParameterInfo& info : parameters(model)) sum += info.numel();
  return sum;
}

Problems set_trainable(std::vector<ParameterInfo>& list, const std::vector<std::string>& patterns) {
  Problems problems;
  if (patterns.empty()) return problems;
  std::vector<bool> matched(patterns.size(), false);
  for (ParameterInfo& info : list) {
    bool any = false;
    for (std::size_t i = 0; i < patterns.size(); ++i) {
      if (!glob_match(patterns[i], info.name)) continue;
      matched[i] = true;
      any = true;
    }
    info.trainable = info.trainable && any;
  }
  for (std::size_t i = 0; i < patterns.size(); ++i) {
    if (matched[i]) continue;
    problems.push_back({"training.trainable",
                        fmt::format("pattern \"{}\" matches no parameter", patterns[i]),
                        fmt::format("names look like \"{}\"; * and ? are wildcards",
                                    list.empty() ? "" : list[list.size() / 2].name)});
  }
  return problems;
}

}  // namespace quatrain
