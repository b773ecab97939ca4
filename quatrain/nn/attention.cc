// SPDX-License-Identifier: Apache-2.0
// Self-attention around kernels::attention. q, k and v are views into one fused buffer, and so are
// their gradients: nothing is copied between the projection and the kernel.
#include "quatrain/nn/attention.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "quatrain/kernels/attention.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/check.h"
#include "quatrain/nn/kv_cache.h"

namespace quatrain {
namespace {

constexpr std::string_view kQkv = "attn.qkv";
constexpr std::string_view kQ = "attn.q";  // q and k after norm and rotation: with qk-norm only
constexpr std::string_view kK = "attn.k";
constexpr std::string_view kQRstd = "attn.q_rstd";
constexpr std::string_view kKRstd = "attn.k_rstd";
constexpr std::string_view kOut = "attn.out";
constexpr std::string_view kHeads = "attn.heads";  // exchanged q, k and v, and what came of them
constexpr std::string_view kHeadsOut = "attn.heads_out";
constexpr std::string_view kLse = "attn.lse";
constexpr std::string_view kDqkv = "attn.dqkv";
constexpr std::string_view kDqGain = "attn.dq_gain";
constexpr std::string_view kDkGain = "attn.dk_gain";
constexpr std::string_view kDy = "attn.dy";

at::Tensor rows_of_heads(const at::Tensor& x_BTHd) {
  return x_BTHd.view({-1, x_BTHd.size(2), x_BTHd.size(3)});
}

}  // namespace

Attention::Attention(const ModelSpec& spec, std::int64_t layer, const AttentionParams& params,
                     RotaryTables rotary, const ModelRanks& ranks, std::string_view kept)
    : layer_(layer),
      head_dim_(spec.head_dim),
      heads_local_(params.qkv.first->local_shape[0] / spec.head_dim),
      kv_heads_local_(params.qkv.last->local_shape[0] / spec.head_dim),
      window_(spec.layer_window(layer)),
      norm_eps_(spec.norm_eps),
      q_norm_(params.q_norm),
      k_norm_(params.k_norm),
      rotary_(std::move(rotary)),
      context_(ranks.cp),
      qkv_(ranks.tp, params.qkv, params.qkv_bias, kept),
      out_(ranks.tp, params.out, params.out_bias, kDy),
      dropout_(spec.residual_dropout, Dropout::attention_site(layer), ranks.tp) {}

Attention::Heads Attention::split(const at::Tensor& qkv, const Pass& pass) const {
  const std::int64_t batch = pass.positions_BT.size(0);
  const std::int64_t seq = pass.positions_BT.size(1);
  const at::Tensor all = qkv.view({batch, seq, heads_local_ + 2 * kv_heads_local_, head_dim_});
  return {all.narrow(2, 0, heads_local_), all.narrow(2, heads_local_, kv_heads_local_),
          all.narrow(2, heads_local_ + kv_heads_local_, kv_heads_local_)};
}

Attention::Heads Attention::normalise(const Heads& raw, Stash& stash) const {
  at::Tensor q = rows_of_heads(raw.q);
  at::Tensor k = rows_of_heads(raw.k);
  kernels::NormOut q_out = kernels::norm_forward(q, {}, q_norm_.value(), {}, norm_eps_, false);
  kernels::NormOut k_out = kernels::norm_forward(k, {}, k_norm_.value(), {}, norm_eps_, false);
  stash.save(std::move(q_out.rstd), Until::kInput, kQRstd);
  stash.save(std::move(k_out.rstd), Until::kInput, kKRstd);
  if (!context_.exchanges()) {
    stash.save(q_out.y, Until::kInput, kQ);
    stash.save(k_out.y, Until::kInput, kK);
  }
  return {q_out.y.view(raw.q.sizes()), k_out.y.view(raw.k.sizes()), raw.v};
}

void Attention::rotate(const at::Tensor& qkv, Heads& heads, const Pass& pass, bool inverse) const {
  if (!rotary_.cos.defined()) return;
  const at::Tensor positions_N = pass.positions_BT.reshape({-1});
  if (!q_norm_.present()) {
    at::Tensor qk = qkv.view({-1, heads_local_ + 2 * kv_heads_local_, head_dim_})
                        .narrow(1, 0, heads_local_ + kv_heads_local_);
    kernels::rope_(qk, rotary_.cos, rotary_.sin, positions_N, inverse);
    return;
  }
  for (at::Tensor* part : {&heads.q, &heads.k}) {
    at::Tensor rows = rows_of_heads(*part);
    kernels::rope_(rows, rotary_.cos, rotary_.sin, positions_N, inverse);
  }
}

ContextMask Attention::mask(const Pass& pass) const {
  return {.seq = pass.whole_seq(),
          .scale = 1.0 / std::sqrt(static_cast<double>(head_dim_)),
          .window = window_,
          .documents_BS = pass.documents_BS};
}

// A decoder's ranks have all tokens each.
ContextParallel::Attended Attention::attend(const Heads& heads, const Pass& pass) const {
  const ContextMask seen = mask(pass);
  if (pass.mode != Mode::kDecode) return context_.forward(heads, seen);
  kernels::AttentionOut out =
      kernels::attention(heads.q, heads.k, heads.v, seen.scale, {seen.window, seen.documents_BS});
  return {std::move(out.out_BTHd), std::move(out.lse_BHT), {}, {}};
}

at::Tensor Attention::forward(const at::Tensor& x_RD, const Pass& pass, Stash& stash,
                              bool keep_x) const {
  const at::Tensor qkv = qkv_.forward(x_RD, pass, stash, keep_x);
  Heads heads = split(qkv, pass);
  const bool train = pass.mode == Mode::kTrain;
  Stash nothing = Stash::discarding();
  if (q_norm_.present()) heads = normalise(heads, train ? stash : nothing);
  rotate(qkv, heads, pass, false);
  if (pass.mode == Mode::kDecode && pass.cache != nullptr) {
    std::tie(heads.k, heads.v) = pass.cache->append(layer_, heads.k, heads.v);
  }
  ContextParallel::Attended attended = attend(heads, pass);
  const at::Tensor out = attended.out_BTHd.view({qkv.size(0), heads_local_ * head_dim_});
  at::Tensor y_RD = out_.forward(out);
  dropout_.apply_(y_RD, pass);
  if (train && pass.sums != nullptr && attended.lse.numel() > 0) {
    const auto largest = attended.lse.max().item<double>();
    pass.sums->max_attention_lse = std::max(pass.sums->max_attention_lse, largest);
  }
  if (train) {
    const bool exchanged = context_.exchanges();
    if (!exchanged || q_norm_.present()) stash.save(qkv, Until::kInput, kQkv);
    if (exchanged) {
      stash.save(std::move(attended.heads), Until::kInput, kHeads);
      stash.save(std::move(attended.heads_out), Until::kInput, kHeadsOut);
    }
    if (!exchanged || out_.needs_x()) {
      stash.save(out, out_.needs_x() ? Until::kWeight : Until::kInput, kOut);
    }
    stash.save(std::move(attended.lse), Until::kInput, kLse);
  }
  return y_RD;
}

void Attention::normalise_backward(const Heads& raw, Heads& grads, std::int64_t seq,
                                   Stash& stash) const {
  const auto one = [&](const at::Tensor& x, at::Tensor& grad, const ParamRange& gain,
                       std::string_view rstd, std::string_view dgain) {
    kernels::NormGrads out =
        kernels::norm_backward(rows_of_heads(grad), rows_of_heads(x), {}, stash.take(rstd),
                               gain.value(), false, {}, seq * x.size(2), gain.any_trainable());
    grad.copy_(out.dx.view(grad.sizes()));
    if (gain.any_trainable()) stash.save(std::move(out.dgain_LD), Until::kWeight, dgain);
  };
  one(raw.q, grads.q, q_norm_, kQRstd, kDqGain);
  one(raw.k, grads.k, k_norm_, kKRstd, kDkGain);
}

at::Tensor Attention::gradient_of_qkv(const at::Tensor& dout_NE, const at::Tensor& out_NE,
                                      const Pass& pass, Stash& stash) const {
  const bool exchanged = context_.exchanges(), normed = q_norm_.present();
  const std::int64_t width = (heads_local_ + 2 * kv_heads_local_) * head_dim_;
  const at::Tensor qkv = !exchanged || normed ? stash.take(kQkv) : at::Tensor();
  const Heads raw = qkv.defined() ? split(qkv, pass) : Heads{};
  at::Tensor dqkv = at::empty({dout_NE.size(0), width}, dout_NE.options());
  Heads grads = split(dqkv, pass);
  const at::Tensor dout = dout_NE.view(grads.q.sizes());
  if (exchanged) {
    const at::Tensor heads = stash.take(kHeads), heads_out = stash.take(kHeadsOut);
    context_.backward(dout, {}, {{}, stash.take(kLse), heads, heads_out}, mask(pass), grads);
  } else {
    Heads heads = raw;
    if (normed) {
      heads.q = stash.take(kQ).view(raw.q.sizes());
      heads.k = stash.take(kK).view(raw.k.sizes());
    }
    context_.backward(dout, heads, {out_NE.view(raw.q.sizes()), stash.take(kLse), {}, {}},
                      mask(pass), grads);
  }
  rotate(dqkv, grads, pass, true);
  if (q_norm_.present()) normalise_backward(raw, grads, pass.positions_BT.size(1), stash);
  return dqkv;
}

at::Tensor Attention::backward_input(const at::Tensor& dy_RD, const Pass& pass, Stash& stash,
                                     const Fill& fill) const {
  at::Tensor dout_NE = out_.backward_input(dropout_.backward(dy_RD, pass), pass, stash, fill);
  at::Tensor out_NE;
  if (!context_.exchanges()) out_NE = out_.needs_x() ? stash.at(kOut) : stash.take(kOut);
  const at::Tensor dqkv = gradient_of_qkv(dout_NE, out_NE, pass, stash);
  dout_NE.reset();
  if (qkv_.needs_dy()) stash.save(dqkv, Until::kWeight, kDqkv);
  return qkv_.backward_input(dqkv, fill);
}

bool Attention::weight_piece(const Pass& pass, Stash& stash) const {
  if (stash.has(kDqGain)) pass.grads->rows(q_norm_, stash.take(kDqGain));
  if (stash.has(kDkGain)) pass.grads->rows(k_norm_, stash.take(kDkGain));
  if (out_.has_dy(stash)) {
    const at::Tensor out_NE = out_.needs_x() ? stash.take(kOut) : at::Tensor();
    out_.backward_weight(out_NE, pass, stash);
    return true;
  }
  if (stash.has(kDqkv) && qkv_.has_x(stash)) {
    qkv_.backward_weight(stash.take(kDqkv), pass, stash);
    return true;
  }
  return false;
}

}  // namespace quatrain
