// SPDX-License-Identifier: Apache-2.0
// Final norm, logits and loss. One buffer of logits serves all chunks; the gradient of the norm's
// output is written over that output, chunk by chunk.
#include "quatrain/nn/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <utility>

#include "quatrain/kernels/flops.h"
#include "quatrain/kernels/matmul.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

constexpr std::string_view kDx = "head.dx";

at::Tensor value_or_none(const ParamRange& range) {
  return range.present() ? range.value() : at::Tensor();
}

}  // namespace

Head::Head(const ModelSpec& spec, ParamUnit& unit, const HeadParams& params,
           std::int64_t chunk_tokens)
    : unit_(unit),
      norm_(params.norm),
      norm_bias_(params.norm_bias),
      weight_(params.weight),
      eps_(spec.norm_eps),
      chunk_tokens_(chunk_tokens) {
  CHECK(chunk_tokens > 0, "chunks of {} rows", chunk_tokens);
}

std::vector<ParamUnit*> Head::units() {
  if (weight_.unit == &unit_) return {&unit_};
  return {&unit_, weight_.unit};
}

at::Tensor Head::last_logits(const at::Tensor& x_BTD) const {
  at::Tensor x_BD = x_BTD.select(1, x_BTD.size(1) - 1).contiguous();
  const kernels::NormOut norm = kernels::norm_forward(
      x_BD, {}, norm_.value(), value_or_none(norm_bias_), eps_, norm_bias_.present());
  const at::Tensor w_VD = weight_.value();
  return kernels::matmul(kernels::n(norm.y), kernels::t(w_VD));
}

LossSums Head::run_chunks(at::Tensor& n_ND, const Pass& pass) const {
  const bool train = pass.mode == Mode::kTrain;
  const at::Tensor w_VD = weight_.value();
  const at::Tensor labels_N = pass.labels_BT.reshape({-1});
  const std::int64_t rows = n_ND.size(0);
  at::Tensor logits_CV;
  {
    const ScopedMemoryCategory category(MemoryCategory::kBuffers);
    logits_CV = at::empty({std::min(rows, chunk_tokens_), w_VD.size(0)}, n_ND.options());
  }
  LossSums sums;
  for (std::int64_t begin = 0; begin < rows; begin += chunk_tokens_) {
    const std::int64_t count = std::min(chunk_tokens_, rows - begin);
    at::Tensor chunk_CD = n_ND.narrow(0, begin, count);
    at::Tensor chunk_CV = logits_CV.narrow(0, 0, count);
    kernels::matmul_out(chunk_CV, kernels::n(chunk_CD), kernels::t(w_VD));
    const kernels::CrossEntropySums part = kernels::cross_entropy_(
        chunk_CV, labels_N.narrow(0, begin, count), pass.loss_scale, pass.z_loss, train);
    sums.loss += part.loss;
    sums.z += part.z;
    sums.max_logit = std::max(sums.max_logit, part.max_logit);
    sums.tokens += part.tokens;
    if (!train) continue;
    {
      const ScopedPass weight_pass(PassKind::kBackwardWeight);
      pass.grads->outer(weight_, chunk_CV, chunk_CD);
    }
    const ScopedPass input_pass(PassKind::kBackwardInput);
    kernels::matmul_out(chunk_CD, kernels::n(chunk_CV), kernels::n(w_VD));
  }
  return sums;
}

at::Tensor Head::forward(const at::Tensor& x_BTD, const Pass& pass, Stash& stash) {
  if (pass.mode == Mode::kDecode) return last_logits(x_BTD);
  CHECK(pass.labels_BT.defined(), "the head needs labels");
  at::Tensor x_ND = x_BTD.view({-1, x_BTD.size(-1)});
  kernels::NormOut norm = kernels::norm_forward(x_ND, {}, norm_.value(), value_or_none(norm_bias_),
                                                eps_, norm_bias_.present());
  const LossSums sums = run_chunks(norm.y, pass);
  if (pass.sums != nullptr) {
    pass.sums->loss += sums.loss;
    pass.sums->z += sums.z;
    pass.sums->max_logit = std::max(pass.sums->max_logit, sums.max_logit);
    pass.sums->tokens += sums.tokens;
  }
  if (pass.mode == Mode::kTrain) {
    const bool need_gain = norm_.any_trainable() || norm_bias_.any_trainable();
    kernels::NormGrads grads =
        kernels::norm_backward(norm.y, x_ND, norm.mean, norm.rstd, norm_.value(),
                               norm_bias_.present(), {}, x_BTD.size(1), need_gain);
    if (norm_.any_trainable()) pass.grads->rows(norm_, grads.dgain_LD);
    if (norm_bias_.any_trainable()) pass.grads->rows(norm_bias_, grads.dbias_LD);
    stash.save(grads.dx.view(x_BTD.sizes()), Until::kInput, kDx);
  }
  return at::scalar_tensor((sums.loss + pass.z_loss * sums.z) * pass.loss_scale,
                           at::TensorOptions(at::kDouble));
}

at::Tensor Head::backward_input(const at::Tensor&, const Pass&, Stash& stash, Filler&) {
  return stash.take(kDx);
}

void Head::backward_weight(const Pass&, Stash& stash) { stash.clear(); }

}  // namespace quatrain
