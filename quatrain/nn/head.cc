// SPDX-License-Identifier: Apache-2.0
// Final norm, logits and loss. One buffer of logits serves all chunks; the gradient of the norm's
// output is written over that output, chunk by chunk.
#include "quatrain/nn/head.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "quatrain/kernels/flops.h"
#include "quatrain/kernels/matmul.h"
#include "quatrain/kernels/memory.h"
#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/check.h"
#include "quatrain/nn/vocab_share.h"

namespace quatrain {
namespace {

constexpr std::string_view kDx = "head.dx";

at::Tensor value_or_none(const ParamRange& range) {
  return range.present() ? range.value() : at::Tensor();
}

void add(LossSums& to, const LossSums& part) {
  to.loss += part.loss;
  to.z += part.z;
  to.max_logit = std::max(to.max_logit, part.max_logit);
  to.tokens += part.tokens;
}

LossSums sums_of(const kernels::CrossEntropySums& part) {
  return {part.loss, part.z, part.max_logit, part.tokens};
}

// Each rank's words of every row, laid side by side.
at::Tensor all_words(const at::Tensor& logits_BV, std::int64_t vocab, const TensorParallel& tp) {
  if (!tp.sums()) return logits_BV;
  std::vector<std::int64_t> words;
  for (int r = 0; r < tp.degree(); ++r) words.push_back(piece(vocab, tp.degree(), r).size());
  at::Tensor all_VB = at::empty({vocab, logits_BV.size(0)}, logits_BV.options());
  tp.group().all_gather(all_VB, logits_BV.t().contiguous(), words).wait();
  return all_VB.t();
}

}  // namespace

Head::Head(const ModelSpec& spec, ParamUnit& unit, const HeadParams& params,
           const TensorParallel& tp, std::int64_t chunk_tokens)
    : unit_(unit),
      tp_(tp),
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

at::Tensor Head::last_logits(const at::Tensor& x_RD, const Pass& pass) const {
  const at::Tensor x_ND = tp_.to_whole(x_RD, pass.positions_BT.numel()).wait();
  const std::int64_t seq = pass.positions_BT.size(1);
  at::Tensor x_BD = x_ND.view({-1, seq, x_ND.size(1)}).select(1, seq - 1).contiguous();
  const kernels::NormOut norm = kernels::norm_forward(
      x_BD, {}, norm_.value(), value_or_none(norm_bias_), eps_, norm_bias_.present());
  const at::Tensor w_VD = weight_.value();
  return all_words(kernels::matmul(kernels::n(norm.y), kernels::t(w_VD)),
                   weight_.first->info.shape[0], tp_);
}

LossSums Head::loss_of(at::Tensor& logits_CV, const at::Tensor& labels_C, const Pass& pass) const {
  const bool train = pass.mode == Mode::kTrain;
  if (!tp_.sums()) {
    return sums_of(
        kernels::cross_entropy_(logits_CV, labels_C, pass.loss_scale, pass.z_loss, train));
  }
  const kernels::VocabShare share = vocab_share(weight_);
  const kernels::ShareStatistics own =
      kernels::cross_entropy_statistics(logits_CV, labels_C, share);
  const at::Tensor all_SC3 =
      at::empty({tp_.degree() * labels_C.numel(), 3}, own.of_rows_N3.options());
  all_gather(tp_.group(), all_SC3, own.of_rows_N3).wait();
  LossSums sums = sums_of(kernels::cross_entropy_share_(logits_CV, labels_C, share, all_SC3,
                                                        {pass.loss_scale, pass.z_loss, train}));
  sums.max_logit = own.max_logit;
  return sums;
}

LossSums Head::run_chunks(at::Tensor& n_ND, const Pass& pass) const {
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
    add(sums, loss_of(chunk_CV, labels_N.narrow(0, begin, count), pass));
    if (pass.mode != Mode::kTrain) continue;
    {
      const ScopedPass weight_pass(PassKind::kBackwardWeight);
      pass.grads->outer(weight_, chunk_CV, chunk_CD);
    }
    const ScopedPass input_pass(PassKind::kBackwardInput);
    kernels::matmul_out(chunk_CD, kernels::n(chunk_CV), kernels::n(w_VD));
  }
  return sums;
}

at::Tensor Head::forward(const at::Tensor& x_RD, const Pass& pass, Stash& stash) {
  if (pass.mode == Mode::kDecode) return last_logits(x_RD, pass);
  CHECK(pass.labels_BT.defined(), "the head needs labels");
  at::Tensor x = x_RD;
  kernels::NormOut norm = kernels::norm_forward(x, {}, norm_.value(), value_or_none(norm_bias_),
                                                eps_, norm_bias_.present());
  at::Tensor n_ND = tp_.to_whole(std::move(norm.y), pass.positions_BT.numel()).wait();
  const LossSums sums = run_chunks(n_ND, pass);
  if (pass.sums != nullptr) add(*pass.sums, sums);
  if (pass.mode == Mode::kTrain) {
    const bool need_gain = norm_.any_trainable() || norm_bias_.any_trainable();
    const std::int64_t leaf = tp_.cuts_rows() ? x.size(0) : pass.positions_BT.size(1);
    kernels::NormGrads grads =
        kernels::norm_backward(tp_.to_rows(n_ND).wait(), x, norm.mean, norm.rstd, norm_.value(),
                               norm_bias_.present(), {}, leaf, need_gain);
    if (norm_.any_trainable()) pass.grads->rows(norm_, grads.dgain_LD);
    if (norm_bias_.any_trainable()) pass.grads->rows(norm_bias_, grads.dbias_LD);
    stash.save(std::move(grads.dx), Until::kInput, kDx);
  }
  return at::scalar_tensor((sums.loss + pass.z_loss * sums.z) * pass.loss_scale,
                           at::TensorOptions(at::kDouble));
}

at::Tensor Head::backward_input(const at::Tensor&, const Pass&, Stash& stash, Filler&) {
  return stash.take(kDx);
}

void Head::backward_weight(const Pass&, Stash& stash) { stash.clear(); }

}  // namespace quatrain
