// SPDX-License-Identifier: Apache-2.0
// Where rows stay, they are gathered by expert again where they are read again; what has come from
// other ranks is kept.
#include "quatrain/nn/routed_experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "quatrain/kernels/pointwise.h"
#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

constexpr std::string_view kExpertPre = "moe.pre";
constexpr std::string_view kExpertAct = "moe.act";
constexpr std::string_view kExpertDpre = "moe.dpre";
// Of rows that arrived:
constexpr std::string_view kExpertCounts = "moe.counts";
constexpr std::string_view kWeights = "moe.weights";
constexpr std::string_view kRows = "moe.x_rows";
constexpr std::string_view kDyRows = "moe.dy_rows";

at::Tensor rows_of_width(const at::Tensor& like, std::int64_t width) {
  return at::empty({like.size(0), width}, like.options());
}

}  // namespace

RoutedExperts::RoutedExperts(std::int64_t experts, std::vector<ExpertParams> params,
                             const ExpertParallel& ep)
    : experts_(experts), params_(std::move(params)), ep_(ep) {
  CHECK(static_cast<std::int64_t>(params_.size()) == ep.held(experts).size(),
        "{} experts here, of {}", params_.size(), experts);
}

bool RoutedExperts::trains(ParamRange ExpertParams::*part) const {
  return std::any_of(params_.begin(), params_.end(),
                     [&](const ExpertParams& e) { return (e.*part).any_trainable(); });
}

std::vector<at::Tensor> RoutedExperts::matrices(ParamRange ExpertParams::*part) const {
  std::vector<at::Tensor> list;
  list.reserve(params_.size());
  for (const ExpertParams& expert : params_) list.push_back((expert.*part).value());
  return list;
}

at::Tensor RoutedExperts::slice(const at::Tensor& x_N) const {
  const Range sent = ep_.sent(x_N.size(0));
  return x_N.narrow(0, sent.begin, sent.size());
}

// Other ranks of tp have the other rows' terms.
at::Tensor RoutedExperts::whole(const at::Tensor& slice, std::int64_t rows) const {
  if (ep_.sends_all()) return slice;
  const Range sent = ep_.sent(rows);
  at::Tensor all_N = at::zeros({rows, slice.size(1)}, slice.options());
  all_N.narrow(0, sent.begin, sent.size()).copy_(slice);
  return all_N;
}

kernels::ExpertRows RoutedExperts::sorted(const at::Tensor& experts_Nk) const {
  return kernels::sort_by_expert(slice(experts_Nk), experts_);
}

RoutedExperts::Route RoutedExperts::route(const Choices& choices) const {
  Route route{sorted(choices.experts_Nk), {}};
  route.weights_M = slice(choices.weights_Nk).reshape({-1}).index_select(0, route.rows.choice_M);
  return route;
}

at::Tensor RoutedExperts::compute(const at::Tensor& x_XD, const at::Tensor& weights_X,
                                  std::span<const std::int64_t> begin, Stash& stash) const {
  const std::vector<at::Tensor> ups = matrices(&ExpertParams::up);
  at::Tensor pre = rows_of_width(x_XD, ups[0].size(0));
  kernels::grouped_matmul_out(pre, x_XD, ups, true, begin);
  at::Tensor act_XF = kernels::swiglu(pre);
  stash.save(std::move(pre), Until::kInput, kExpertPre);
  kernels::scale_rows_(act_XF, weights_X);
  at::Tensor y_XD = rows_of_width(x_XD, x_XD.size(1));
  kernels::grouped_matmul_out(y_XD, act_XF, matrices(&ExpertParams::down), true, begin);
  return y_XD;
}

RoutedExperts::RowGrads RoutedExperts::compute_backward(const at::Tensor& dy_XD,
                                                        const at::Tensor& weights_X,
                                                        std::span<const std::int64_t> begin,
                                                        Stash& stash) const {
  const at::Tensor pre = stash.take(kExpertPre);
  at::Tensor dact_XF = rows_of_width(pre, pre.size(1) / 2);
  kernels::grouped_matmul_out(dact_XF, dy_XD, matrices(&ExpertParams::down), false, begin);
  kernels::ActivationGrads grads = kernels::swiglu_backward(dact_XF, pre);
  at::Tensor dweights_X = kernels::row_dots(dact_XF, grads.act);
  dact_XF.reset();
  kernels::scale_rows_(grads.dx, weights_X);
  if (trains(&ExpertParams::down)) {
    kernels::scale_rows_(grads.act, weights_X);
    stash.save(std::move(grads.act), Until::kWeight, kExpertAct);
  }
  if (trains(&ExpertParams::up)) stash.save(grads.dx, Until::kWeight, kExpertDpre);
  at::Tensor dx_XD = rows_of_width(dy_XD, dy_XD.size(1));
  kernels::grouped_matmul_out(dx_XD, grads.dx, matrices(&ExpertParams::up), false, begin);
  return {std::move(dx_XD), std::move(dweights_X)};
}

at::Tensor RoutedExperts::forward(const at::Tensor& x_ND, const Choices& choices, Stash& stash,
                                  const Fill& under) const {
  const Route here = route(choices);
  at::Tensor y_MD = kernels::gather_by_expert(slice(x_ND), here.rows);
  if (ep_.moves()) {
    y_MD = forward_there(y_MD, here, stash, under);
  } else {
    under();
    y_MD = compute(y_MD, here.weights_M, here.rows.begin, stash);
  }
  return whole(kernels::sum_by_row(y_MD, here.rows), x_ND.size(0));
}

at::Tensor RoutedExperts::forward_there(const at::Tensor& x_MD, const Route& here, Stash& stash,
                                        const Fill& under) const {
  const ExpertTraffic traffic = ep_.traffic(here.rows.begin);
  Arriving weights = ep_.dispatch(here.weights_M, traffic);
  Arriving rows = ep_.dispatch(x_MD, traffic);
  under();
  const at::Tensor weights_X = weights.wait(), x_XD = rows.wait();
  const bool up = trains(&ExpertParams::up), down = trains(&ExpertParams::down);
  stash.save(traffic.counts_GE, up || down ? Until::kWeight : Until::kInput, kExpertCounts);
  stash.save(weights_X, Until::kInput, kWeights);
  if (up) stash.save(x_XD, Until::kWeight, kRows);
  return ep_.collect(compute(x_XD, weights_X, traffic.begin, stash), traffic).wait();
}

RoutedExperts::Grads RoutedExperts::backward_input(const at::Tensor& dy_ND, const Choices& choices,
                                                   Stash& stash, const Fill& under) const {
  const Route here = route(choices);
  const at::Tensor dy_MD = kernels::gather_by_expert(slice(dy_ND), here.rows);
  const RowGrads grads = ep_.moves()
                             ? backward_there(dy_MD, here, stash, under)
                             : compute_backward(dy_MD, here.weights_M, here.rows.begin, stash);
  const at::Tensor dweights_Nk = kernels::by_choice(grads.dweights_X, here.rows);
  return {whole(kernels::sum_by_row(grads.dx_XD, here.rows), dy_ND.size(0)),
          whole(dweights_Nk, dy_ND.size(0))};
}

RoutedExperts::RowGrads RoutedExperts::backward_there(const at::Tensor& dy_MD, const Route& here,
                                                      Stash& stash, const Fill& under) const {
  const bool up = trains(&ExpertParams::up), down = trains(&ExpertParams::down);
  const at::Tensor counts_GE = up || down ? stash.at(kExpertCounts) : stash.take(kExpertCounts);
  const ExpertTraffic traffic = ep_.traffic(here.rows.begin, counts_GE);
  Arriving arriving = ep_.dispatch(dy_MD, traffic);
  under();
  const at::Tensor dy_XD = arriving.wait();
  const RowGrads grads = compute_backward(dy_XD, stash.take(kWeights), traffic.begin, stash);
  if (down) stash.save(dy_XD, Until::kWeight, kDyRows);
  Arriving weights = ep_.collect(grads.dweights_X, traffic);
  Arriving rows = ep_.collect(grads.dx_XD, traffic);
  under();
  at::Tensor dweights_M = weights.wait();
  return {rows.wait(), std::move(dweights_M)};
}

void RoutedExperts::outer(ParamRange ExpertParams::*part, const at::Tensor& dy_XO,
                          const at::Tensor& x_XI, std::span<const std::int64_t> begin,
                          const Pass& pass) const {
  for (std::size_t e = 0; e < params_.size(); ++e) {
    const std::int64_t count = begin[e + 1] - begin[e];
    const ParamRange& range = params_[e].*part;
    if (count == 0 || !range.any_trainable()) continue;
    pass.grads->outer(range, dy_XO.narrow(0, begin[e], count), x_XI.narrow(0, begin[e], count));
  }
}

bool RoutedExperts::waits_for_down(const Stash& stash) const {
  return stash.has(kExpertAct) && (!ep_.moves() || stash.has(kDyRows));
}
bool RoutedExperts::waits_for_up(const Stash& stash) const { return stash.has(kExpertDpre); }

std::vector<std::int64_t> RoutedExperts::arrived_runs(Stash& stash) const {
  const bool last = !stash.has(kExpertAct) || !stash.has(kExpertDpre);
  const at::Tensor counts_E = (last ? stash.take(kExpertCounts) : stash.at(kExpertCounts)).sum(0);
  const auto counts = counts_E.accessor<std::int64_t, 1>();
  std::vector<std::int64_t> begin{0};
  for (std::int64_t e = 0; e < counts.size(0); ++e) begin.push_back(begin.back() + counts[e]);
  return begin;
}

void RoutedExperts::down_weights(const at::Tensor& dy_ND, const at::Tensor& experts_Nk,
                                 const Pass& pass, Stash& stash) const {
  if (ep_.moves()) {
    const std::vector<std::int64_t> begin = arrived_runs(stash);
    return outer(&ExpertParams::down, stash.take(kDyRows), stash.take(kExpertAct), begin, pass);
  }
  const kernels::ExpertRows rows = sorted(experts_Nk);
  outer(&ExpertParams::down, kernels::gather_by_expert(slice(dy_ND), rows), stash.take(kExpertAct),
        rows.begin, pass);
}

void RoutedExperts::up_weights(const at::Tensor& x_ND, const at::Tensor& experts_Nk,
                               const Pass& pass, Stash& stash) const {
  if (ep_.moves()) {
    const std::vector<std::int64_t> begin = arrived_runs(stash);
    return outer(&ExpertParams::up, stash.take(kExpertDpre), stash.take(kRows), begin, pass);
  }
  const kernels::ExpertRows rows = sorted(experts_Nk);
  outer(&ExpertParams::up, stash.take(kExpertDpre), kernels::gather_by_expert(slice(x_ND), rows),
        rows.begin, pass);
}

}  // namespace quatrain
