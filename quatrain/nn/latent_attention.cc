// SPDX-License-Identifier: Apache-2.0
// Latent and rotated key travel as one matrix, so that tp gathers and sums them once.
#include "quatrain/nn/latent_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "quatrain/kernels/attention.h"
#include "quatrain/kernels/matmul.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/check.h"
#include "quatrain/nn/kv_cache.h"

namespace quatrain {
namespace {

constexpr std::string_view kQa = "attn.q_a";
constexpr std::string_view kQaRstd = "attn.q_a_rstd";
constexpr std::string_view kQaY = "attn.q_a_y";  // what queries are made of
constexpr std::string_view kKva = "attn.kv_a";
constexpr std::string_view kKvaRstd = "attn.kv_a_rstd";
constexpr std::string_view kLatent = "attn.latent";
constexpr std::string_view kRotated = "attn.rotated";  // the shared key
constexpr std::string_view kLatentQ = "attn.q";
constexpr std::string_view kKv = "attn.kv";
constexpr std::string_view kLatentOut = "attn.out";
constexpr std::string_view kLatentHeads =
    "attn.heads";  // exchanged q, k and v, and what came of them
constexpr std::string_view kLatentHeadsOut = "attn.heads_out";
constexpr std::string_view kLatentLse = "attn.lse";
constexpr std::string_view kLatentDy = "attn.dy";
constexpr std::string_view kDq = "attn.dq";
constexpr std::string_view kDqa = "attn.dq_a";
constexpr std::string_view kDkv = "attn.dkv";
constexpr std::string_view kDkva = "attn.dkv_a";
constexpr std::string_view kLatentDqGain = "attn.dq_gain";
constexpr std::string_view kDkvGain = "attn.dkv_gain";

// The released models', whatever rms_norm_eps says of the block's norms.
constexpr double kLatentEps = 1e-6;

// YaRN lengthens scores by the square of its factor (arXiv:2309.00071, section 3.4).
double score_scale(const ModelSpec& spec) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(spec.head_dim));
  const Rope& rope = spec.rope;
  if (rope.mscale_all_dim == 0.0 || rope.factor <= 1.0) return scale;
  const double factor = 0.1 * rope.mscale_all_dim * std::log(rope.factor) + 1.0;
  return scale * factor * factor;
}

at::Tensor product(const at::Tensor& x, const ParamRange& weight) {
  const at::Tensor w = weight.value();
  return kernels::matmul(kernels::n(x), kernels::t(w));
}

at::Tensor product_backward(const at::Tensor& dy, const ParamRange& weight) {
  const at::Tensor w = weight.value();
  return kernels::matmul(kernels::n(dy), kernels::n(w));
}

}  // namespace

LatentSelfAttention::LatentSelfAttention(const ModelSpec& spec, std::int64_t layer,
                                         const LatentAttentionParams& params, RotaryTables rotary,
                                         const ModelRanks& ranks, std::string_view kept)
    : layer_(layer),
      sizes_(*spec.latent),
      heads_local_(params.q.first->local_shape[0] / spec.head_dim),
      scale_(score_scale(spec)),
      rotary_(std::move(rotary)),
      params_(params),
      tp_(ranks.tp),
      context_(ranks.cp),
      q_(ranks.tp, params.q, {}, params.q_a.present() ? kQaY : kept),
      out_(ranks.tp, params.out, params.out_bias, kLatentDy),
      dropout_(spec.residual_dropout, Dropout::attention_site(layer), ranks.tp),
      kept_(kept) {}

bool LatentSelfAttention::needs_x() const {
  const bool reads_stream = compressed() ? params_.q_a.any_trainable() : q_.needs_x();
  return reads_stream || params_.kv_a.any_trainable();
}

void LatentSelfAttention::rotate(const at::Tensor& x_NHd, std::int64_t begin, const Pass& pass,
                                 bool inverse) const {
  at::Tensor part = x_NHd.narrow(2, begin, sizes_.qk_rope_head_dim);
  kernels::rope_(part, rotary_.cos, rotary_.sin, pass.positions_BT.reshape({-1}), inverse,
                 kernels::RopePairs::kNeighbours);
}

at::Tensor LatentSelfAttention::queries(const at::Tensor& x_RD, const Pass& pass, Stash& stash,
                                        bool keep_x) const {
  at::Tensor q;
  if (compressed()) {
    if (keep_x) stash.save(x_RD, Until::kWeight, kept_);
    at::Tensor latent_RQ = product(x_RD, params_.q_a);
    kernels::NormOut norm =
        kernels::norm_forward(latent_RQ, {}, params_.q_norm.value(), {}, kLatentEps, false);
    stash.save(std::move(latent_RQ), Until::kInput, kQa);
    stash.save(std::move(norm.rstd), Until::kInput, kQaRstd);
    q = q_.forward(norm.y, pass, stash, q_.needs_x());
  } else {
    q = q_.forward(x_RD, pass, stash, keep_x);
  }
  rotate(q.view({q.size(0), heads_local_, -1}), sizes_.qk_nope_head_dim, pass, false);
  return q;
}

at::Tensor LatentSelfAttention::latents(const at::Tensor& x_RD, const Pass& pass,
                                        Stash& stash) const {
  at::Tensor raw = product(x_RD, params_.kv_a);
  at::Tensor compressed_RP = raw.narrow(1, 0, sizes_.kv_lora_rank);
  kernels::NormOut norm =
      kernels::norm_forward(compressed_RP, {}, params_.kv_norm.value(), {}, kLatentEps, false);
  const at::Tensor own =
      at::cat({norm.y, raw.narrow(1, sizes_.kv_lora_rank, sizes_.qk_rope_head_dim)}, 1);
  stash.save(std::move(raw), Until::kInput, kKva);
  stash.save(std::move(norm.rstd), Until::kInput, kKvaRstd);
  const at::Tensor all = tp_.to_whole(own, pass.positions_BT.numel()).wait();
  if (params_.kv_b.any_trainable()) {
    stash.save(tp_.options().gather_again ? own : all, Until::kWeight, kLatent);
  }
  rotate(all.unsqueeze(1), sizes_.kv_lora_rank, pass, false);
  return all;
}

at::Tensor LatentSelfAttention::keys(const at::Tensor& kv_BSHe,
                                     const at::Tensor& rotated_BSr) const {
  const std::int64_t n = sizes_.qk_nope_head_dim, r = sizes_.qk_rope_head_dim;
  at::Tensor k_BSHq =
      at::empty({kv_BSHe.size(0), kv_BSHe.size(1), heads_local_, n + r}, kv_BSHe.options());
  k_BSHq.narrow(3, 0, n).copy_(kv_BSHe.narrow(3, 0, n));
  k_BSHq.narrow(3, n, r).copy_(rotated_BSr.unsqueeze(2).expand({-1, -1, heads_local_, -1}));
  return k_BSHq;
}

ContextMask LatentSelfAttention::mask(const Pass& pass) const {
  return {.seq = pass.whole_seq(), .scale = scale_, .documents_BS = pass.documents_BS};
}

// A decoder's ranks have all tokens each.
ContextParallel::Attended LatentSelfAttention::attend(const QkvHeads& x, const Pass& pass) const {
  if (pass.mode != Mode::kDecode) return context_.forward(x, mask(pass));
  kernels::AttentionOut out = kernels::attention(x.q, x.k, x.v, scale_, {0, pass.documents_BS});
  return {std::move(out.out_BTHd), std::move(out.lse_BHT), {}, {}};
}

at::Tensor LatentSelfAttention::forward(const at::Tensor& x_RD, const Pass& pass, Stash& stash,
                                        bool keep_x) const {
  const std::int64_t batch = pass.positions_BT.size(0), seq = pass.positions_BT.size(1);
  const std::int64_t n = sizes_.qk_nope_head_dim, rank = sizes_.kv_lora_rank;
  const at::Tensor q = queries(x_RD, pass, stash, keep_x);
  const at::Tensor all = latents(x_RD, pass, stash).view({batch, seq, -1});
  at::Tensor latent_BSP = all.narrow(2, 0, rank);
  at::Tensor rotated_BSr = all.narrow(2, rank, sizes_.qk_rope_head_dim);
  if (pass.mode == Mode::kDecode && pass.cache != nullptr) {
    const auto held = pass.cache->append(layer_, rotated_BSr.unsqueeze(2), latent_BSP.unsqueeze(2));
    rotated_BSr = held.first.squeeze(2);
    latent_BSP = held.second.squeeze(2);
  }
  const at::Tensor kv = product(latent_BSP.reshape({-1, rank}), params_.kv_b);
  const at::Tensor kv_BSHe = kv.view({batch, latent_BSP.size(1), heads_local_, -1});
  ContextParallel::Attended attended =
      attend({q.view({batch, seq, heads_local_, -1}), keys(kv_BSHe, rotated_BSr),
              kv_BSHe.narrow(3, n, sizes_.v_head_dim)},
             pass);
  const at::Tensor out = attended.out_BTHd.view({q.size(0), -1});
  at::Tensor y_RD = out_.forward(out);
  dropout_.apply_(y_RD, pass);
  if (pass.mode != Mode::kTrain) return y_RD;
  if (pass.sums != nullptr && attended.lse.numel() > 0) {
    const auto largest = attended.lse.max().item<double>();
    pass.sums->max_attention_lse = std::max(pass.sums->max_attention_lse, largest);
  }
  const bool exchanged = context_.exchanges();
  if (exchanged) {
    stash.save(std::move(attended.heads), Until::kInput, kLatentHeads);
    stash.save(std::move(attended.heads_out), Until::kInput, kLatentHeadsOut);
  } else {
    stash.save(q, Until::kInput, kLatentQ);
    stash.save(kv, Until::kInput, kKv);
    stash.save(rotated_BSr.clone(), Until::kInput, kRotated);
  }
  if (!exchanged || out_.needs_x()) {
    stash.save(out, out_.needs_x() ? Until::kWeight : Until::kInput, kLatentOut);
  }
  stash.save(std::move(attended.lse), Until::kInput, kLatentLse);
  return y_RD;
}

LatentSelfAttention::HeadGrads LatentSelfAttention::heads_backward(const at::Tensor& dout_NE,
                                                                   const Pass& pass,
                                                                   Stash& stash) const {
  const std::int64_t batch = pass.positions_BT.size(0), seq = pass.positions_BT.size(1);
  const std::int64_t n = sizes_.qk_nope_head_dim, r = sizes_.qk_rope_head_dim;
  const auto heads = [&](const at::Tensor& x) { return x.view({batch, seq, heads_local_, -1}); };
  const std::int64_t rows = batch * seq, v = sizes_.v_head_dim;
  HeadGrads grads{at::empty({rows, heads_local_ * (n + r)}, dout_NE.options()),
                  at::empty({rows, heads_local_ * (n + v)}, dout_NE.options()),
                  {}};
  QkvHeads into{heads(grads.dq), at::empty({batch, seq, heads_local_, n + r}, dout_NE.options()),
                heads(grads.dkv).narrow(3, n, v)};
  if (context_.exchanges()) {
    const at::Tensor exchanged = stash.take(kLatentHeads), heads_out = stash.take(kLatentHeadsOut);
    context_.backward(heads(dout_NE), {}, {{}, stash.take(kLatentLse), exchanged, heads_out},
                      mask(pass), into);
  } else {
    const at::Tensor q = stash.take(kLatentQ), kv = stash.take(kKv),
                     rotated_BSr = stash.take(kRotated);
    const at::Tensor out = out_.needs_x() ? stash.at(kLatentOut) : stash.take(kLatentOut);
    context_.backward(heads(dout_NE),
                      {heads(q), keys(heads(kv), rotated_BSr), heads(kv).narrow(3, n, v)},
                      {heads(out), stash.take(kLatentLse), {}, {}}, mask(pass), into);
  }
  const at::Tensor& dk_BSHq = into.k;
  heads(grads.dkv).narrow(3, 0, n).copy_(dk_BSHq.narrow(3, 0, n));
  grads.drotated = dk_BSHq.narrow(3, n, r).sum(2).view({-1, r});
  rotate(grads.dq.view({-1, heads_local_, n + r}), n, pass, true);
  rotate(grads.drotated.unsqueeze(1), 0, pass, true);
  return grads;
}

at::Tensor LatentSelfAttention::latents_backward(const HeadGrads& grads, const Pass& pass,
                                                 Stash& stash, const Fill& fill) const {
  const std::int64_t rank = sizes_.kv_lora_rank;
  if (params_.kv_b.any_trainable()) stash.save(grads.dkv, Until::kWeight, kDkv);
  const at::Tensor terms = at::cat({product_backward(grads.dkv, params_.kv_b), grads.drotated}, 1);
  Moving sum = tp_.to_rows(terms);
  if (tp_.sums()) fill();
  at::Tensor d = sum.wait();
  const at::Tensor raw = stash.take(kKva);
  at::Tensor dlatent_RP = d.narrow(1, 0, rank);
  kernels::NormGrads norm = kernels::norm_backward(
      dlatent_RP, raw.narrow(1, 0, rank), {}, stash.take(kKvaRstd), params_.kv_norm.value(), false,
      {}, gain_leaf(pass, tp_), params_.kv_norm.any_trainable());
  dlatent_RP.copy_(norm.dx);
  if (params_.kv_norm.any_trainable()) {
    stash.save(std::move(norm.dgain_LD), Until::kWeight, kDkvGain);
  }
  if (params_.kv_a.any_trainable()) stash.save(d, Until::kWeight, kDkva);
  return d;
}

at::Tensor LatentSelfAttention::queries_backward(const at::Tensor& dq, const Pass& pass,
                                                 Stash& stash, const Fill& fill) const {
  if (q_.needs_dy()) stash.save(dq, Until::kWeight, kDq);
  const at::Tensor d = q_.backward_input(dq, fill);
  if (!compressed()) return d;
  kernels::NormGrads norm =
      kernels::norm_backward(d, stash.take(kQa), {}, stash.take(kQaRstd), params_.q_norm.value(),
                             false, {}, gain_leaf(pass, tp_), params_.q_norm.any_trainable());
  if (params_.q_norm.any_trainable()) {
    stash.save(std::move(norm.dgain_LD), Until::kWeight, kLatentDqGain);
  }
  if (params_.q_a.any_trainable()) stash.save(norm.dx, Until::kWeight, kDqa);
  return product_backward(norm.dx, params_.q_a);
}

at::Tensor LatentSelfAttention::backward_input(const at::Tensor& dy_RD, const Pass& pass,
                                               Stash& stash, const Fill& fill) const {
  const HeadGrads grads = heads_backward(
      out_.backward_input(dropout_.backward(dy_RD, pass), pass, stash, fill), pass, stash);
  const at::Tensor dlatent = latents_backward(grads, pass, stash, fill);
  at::Tensor dx_RD = queries_backward(grads.dq, pass, stash, fill);
  return dx_RD.add_(product_backward(dlatent, params_.kv_a));
}

void LatentSelfAttention::norm_weights(const Pass& pass, Stash& stash) const {
  if (stash.has(kLatentDqGain)) pass.grads->rows(params_.q_norm, stash.take(kLatentDqGain));
  if (stash.has(kDkvGain)) pass.grads->rows(params_.kv_norm, stash.take(kDkvGain));
}

void LatentSelfAttention::kv_weights(const Pass& pass, Stash& stash) const {
  at::Tensor latent = stash.take(kLatent);
  if (tp_.options().gather_again) {
    latent = tp_.to_whole(latent, pass.positions_BT.numel()).wait();
  }
  pass.grads->outer(params_.kv_b, stash.take(kDkv), latent.narrow(1, 0, sizes_.kv_lora_rank));
}

// One piece reads the kept input for all: it waits for the last gradient.
bool LatentSelfAttention::inputs_wait(const Stash& stash) const {
  const std::string_view dq = compressed() ? kDqa : kDq;
  const ParamRange& reads = compressed() ? params_.q_a : params_.q;
  return stash.has(kept_) && (stash.has(dq) || !reads.any_trainable()) &&
         (stash.has(kDkva) || !params_.kv_a.any_trainable());
}

// What reads the residual stream: own rows of it, but for queries that are not compressed.
void LatentSelfAttention::input_weights(const Pass& pass, Stash& stash) const {
  const bool whole = !compressed() && !tp_.options().gather_again;
  const at::Tensor x_RD = whole ? tp_.own_rows(stash.at(kept_)) : stash.at(kept_);
  if (stash.has(kDkva)) pass.grads->outer(params_.kv_a, stash.take(kDkva), x_RD);
  if (stash.has(kDqa)) pass.grads->outer(params_.q_a, stash.take(kDqa), x_RD);
  if (!compressed() && stash.has(kDq)) {
    q_.backward_weight(stash.take(kDq), pass, stash);
  } else {
    stash.take(kept_);
  }
}

bool LatentSelfAttention::weight_piece(const Pass& pass, Stash& stash) const {
  norm_weights(pass, stash);
  if (out_.has_dy(stash)) {
    const at::Tensor out_NE = out_.needs_x() ? stash.take(kLatentOut) : at::Tensor();
    out_.backward_weight(out_NE, pass, stash);
  } else if (stash.has(kDkv)) {
    kv_weights(pass, stash);
  } else if (compressed() && stash.has(kDq)) {
    q_.backward_weight(stash.take(kDq), pass, stash);
  } else if (inputs_wait(stash)) {
    input_weights(pass, stash);
  } else {
    return false;
  }
  return true;
}

}  // namespace quatrain
