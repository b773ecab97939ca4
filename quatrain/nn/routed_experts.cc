// SPDX-License-Identifier: Apache-2.0
// Where rows stay, they are gathered by expert again where they are read again; what has come from
// other ranks is kept.
#include "quatrain/nn/routed_experts.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>
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

// Pieces of rows as one tensor: the piece itself, where it is all of them.
class Joined {
 public:
  explicit Joined(std::int64_t rows) : rows_(rows) {}
  void put(at::Tensor piece, Range at) {
    if (at.size() == rows_) {
      all_ = std::move(piece);
      return;
    }
    if (!all_.defined()) {
      std::vector<std::int64_t> sizes = piece.sizes().vec();
      sizes[0] = rows_;
      all_ = at::empty(sizes, piece.options());
    }
    rows_in(all_, at).copy_(piece);
  }
  at::Tensor take() { return std::move(all_); }

 private:
  std::int64_t rows_;
  at::Tensor all_;
};

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

std::vector<at::Tensor> RoutedExperts::matrices(ParamRange ExpertParams::*part,
                                                Range experts) const {
  std::vector<at::Tensor> list;
  for (std::int64_t e = experts.begin; e < experts.end; ++e) {
    list.push_back((params_[static_cast<std::size_t>(e)].*part).value());
  }
  return list;
}

RoutedExperts::Runs RoutedExperts::all_of(std::vector<std::int64_t> begin) const {
  return {{0, static_cast<std::int64_t>(params_.size())}, std::move(begin)};
}

RoutedExperts::Runs RoutedExperts::some_of(const std::vector<std::int64_t>& begin, Range experts) {
  Runs runs{experts, {}};
  for (std::int64_t e = experts.begin; e <= experts.end; ++e) {
    runs.begin.push_back(begin[static_cast<std::size_t>(e)] -
                         begin[static_cast<std::size_t>(experts.begin)]);
  }
  return runs;
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

RoutedExperts::Outputs RoutedExperts::compute(const at::Tensor& x_XD, const at::Tensor& weights_X,
                                              const Runs& runs, const Pass& pass) const {
  const std::vector<at::Tensor> ups = matrices(&ExpertParams::up, runs.experts);
  at::Tensor pre = rows_of_width(x_XD, ups[0].size(0));
  kernels::grouped_matmul_out(pre, x_XD, ups, true, runs.begin);
  if (pass.rerun) return {{}, std::move(pre)};
  at::Tensor act_XF = kernels::swiglu(pre);
  kernels::scale_rows_(act_XF, weights_X);
  at::Tensor y_XD = rows_of_width(x_XD, x_XD.size(1));
  const std::vector<at::Tensor> downs = matrices(&ExpertParams::down, runs.experts);
  kernels::grouped_matmul_out(y_XD, act_XF, downs, true, runs.begin);
  return {std::move(y_XD), std::move(pre)};
}

RoutedExperts::RowGrads RoutedExperts::compute_backward(const at::Tensor& dy_XD,
                                                        const at::Tensor& weights_X,
                                                        const at::Tensor& pre,
                                                        const Runs& runs) const {
  at::Tensor dact_XF = rows_of_width(pre, pre.size(1) / 2);
  const std::vector<at::Tensor> downs = matrices(&ExpertParams::down, runs.experts);
  kernels::grouped_matmul_out(dact_XF, dy_XD, downs, false, runs.begin);
  kernels::ActivationGrads grads = kernels::swiglu_backward(dact_XF, pre);
  at::Tensor dweights_X = kernels::row_dots(dact_XF, grads.act);
  dact_XF.reset();
  kernels::scale_rows_(grads.dx, weights_X);
  if (trains(&ExpertParams::down)) {
    kernels::scale_rows_(grads.act, weights_X);
  } else {
    grads.act.reset();
  }
  at::Tensor dx_XD = rows_of_width(dy_XD, dy_XD.size(1));
  const std::vector<at::Tensor> ups = matrices(&ExpertParams::up, runs.experts);
  kernels::grouped_matmul_out(dx_XD, grads.dx, ups, false, runs.begin);
  return {std::move(dx_XD), std::move(dweights_X), std::move(grads.act), std::move(grads.dx)};
}

// For the weight halves.
void RoutedExperts::keep(at::Tensor act, at::Tensor dpre, Stash& stash) const {
  if (trains(&ExpertParams::down)) stash.save(std::move(act), Until::kWeight, kExpertAct);
  if (trains(&ExpertParams::up)) stash.save(std::move(dpre), Until::kWeight, kExpertDpre);
}

at::Tensor RoutedExperts::forward(const at::Tensor& x_ND, const Choices& choices, const Pass& pass,
                                  Stash& stash, const Fill& under) const {
  const Route here = route(choices);
  at::Tensor y_MD = kernels::gather_by_expert(slice(x_ND), here.rows);
  if (ep_.moves()) {
    y_MD = forward_there(y_MD, here, pass, stash, under);
  } else {
    under();
    Outputs made = compute(y_MD, here.weights_M, all_of(here.rows.begin), pass);
    stash.save(std::move(made.pre), Until::kInput, kExpertPre);
    y_MD = std::move(made.y_XD);
  }
  if (pass.rerun) return {};
  return whole(kernels::sum_by_row(y_MD, here.rows), x_ND.size(0));
}

at::Tensor RoutedExperts::forward_there(const at::Tensor& x_MD, const Route& here, const Pass& pass,
                                        Stash& stash, const Fill& under) const {
  const ExpertTraffic traffic = ep_.traffic(here.rows.begin);
  const std::vector<Range> pieces = ep_.pieces(traffic);
  Arriving weights = ep_.dispatch(here.weights_M, traffic, {0, traffic.held()});
  std::vector<Arriving> rows, back;
  for (const Range& piece : pieces) rows.push_back(ep_.dispatch(x_MD, traffic, piece));
  under();
  const bool up = trains(&ExpertParams::up), down = trains(&ExpertParams::down);
  const at::Tensor weights_X = weights.wait();
  const at::Tensor y_MD = pass.rerun ? at::Tensor() : at::empty_like(x_MD);
  Joined x(traffic.arrived()), pre(traffic.arrived());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Range at = traffic.rows(pieces[i]);
    const at::Tensor x_XD = rows[i].wait();
    Outputs made = compute(x_XD, rows_in(weights_X, at), some_of(traffic.begin, pieces[i]), pass);
    if (!pass.rerun) back.push_back(ep_.collect(made.y_XD, traffic, pieces[i], y_MD));
    pre.put(std::move(made.pre), at);
    if (up) x.put(x_XD, at);
  }
  stash.save(traffic.counts_GE, up || down ? Until::kWeight : Until::kInput, kExpertCounts);
  stash.save(weights_X, Until::kInput, kWeights);
  stash.save(pre.take(), Until::kInput, kExpertPre);
  if (up) stash.save(x.take(), Until::kWeight, kRows);
  for (Arriving& piece : back) piece.wait();
  return y_MD;
}

RoutedExperts::Grads RoutedExperts::backward_input(const at::Tensor& dy_ND, const Choices& choices,
                                                   Stash& stash, const Fill& under) const {
  const Route here = route(choices);
  at::Tensor dx_MD = kernels::gather_by_expert(slice(dy_ND), here.rows), dweights_M;
  if (ep_.moves()) {
    std::tie(dx_MD, dweights_M) = backward_there(dx_MD, here, stash, under);
  } else {
    RowGrads grads =
        compute_backward(dx_MD, here.weights_M, stash.take(kExpertPre), all_of(here.rows.begin));
    keep(std::move(grads.act), std::move(grads.dpre), stash);
    dx_MD = std::move(grads.dx_XD);
    dweights_M = std::move(grads.dweights_X);
  }
  const at::Tensor dweights_Nk = kernels::by_choice(dweights_M, here.rows);
  return {whole(kernels::sum_by_row(dx_MD, here.rows), dy_ND.size(0)),
          whole(dweights_Nk, dy_ND.size(0))};
}

std::pair<at::Tensor, at::Tensor> RoutedExperts::backward_there(const at::Tensor& dy_MD,
                                                                const Route& here, Stash& stash,
                                                                const Fill& under) const {
  const bool up = trains(&ExpertParams::up), down = trains(&ExpertParams::down);
  const at::Tensor counts_GE = up || down ? stash.at(kExpertCounts) : stash.take(kExpertCounts);
  const ExpertTraffic traffic = ep_.traffic(here.rows.begin, counts_GE);
  const std::vector<Range> pieces = ep_.pieces(traffic);
  std::vector<Arriving> rows, back;
  for (const Range& piece : pieces) rows.push_back(ep_.dispatch(dy_MD, traffic, piece));
  under();
  const at::Tensor weights_X = stash.take(kWeights), pre = stash.take(kExpertPre);
  const at::Tensor dx_MD = at::empty_like(dy_MD), dweights_M = at::empty_like(here.weights_M);
  const std::int64_t arrived = traffic.arrived();
  Joined dy(arrived), dweights(arrived), act(arrived), dpre(arrived);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Range at = traffic.rows(pieces[i]);
    const at::Tensor dy_XD = rows[i].wait();
    RowGrads grads = compute_backward(dy_XD, rows_in(weights_X, at), rows_in(pre, at),
                                      some_of(traffic.begin, pieces[i]));
    back.push_back(ep_.collect(grads.dx_XD, traffic, pieces[i], dx_MD));
    dweights.put(std::move(grads.dweights_X), at);
    if (down) dy.put(dy_XD, at);
    if (down) act.put(std::move(grads.act), at);
    if (up) dpre.put(std::move(grads.dpre), at);
  }
  back.push_back(ep_.collect(dweights.take(), traffic, {0, traffic.held()}, dweights_M));
  keep(act.take(), dpre.take(), stash);
  if (down) stash.save(dy.take(), Until::kWeight, kDyRows);
  under();
  for (Arriving& piece : back) piece.wait();
  return {dx_MD, dweights_M};
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
