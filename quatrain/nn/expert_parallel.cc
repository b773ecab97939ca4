// SPDX-License-Identifier: Apache-2.0
#include "quatrain/nn/expert_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

at::Tensor rows_like(const at::Tensor& x, std::int64_t rows) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, x.options());
}

// Neighbours are taken as one.
at::Tensor in_order(const at::Tensor& rows, const std::vector<Range>& runs) {
  std::vector<Range> joined;
  for (const Range& run : runs) {
    if (run.size() == 0) continue;
    if (!joined.empty() && joined.back().end == run.begin) {
      joined.back().end = run.end;
    } else {
      joined.push_back(run);
    }
  }
  if (joined.empty()) return rows.narrow(0, 0, 0);
  std::vector<at::Tensor> parts;
  for (const Range& run : joined) parts.push_back(rows_in(rows, run));
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

std::int64_t sum(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

std::vector<std::int64_t> values_of(const at::Tensor& x) {
  const auto values = x.accessor<std::int64_t, 1>();
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < values.size(0); ++i) all.push_back(values[i]);
  return all;
}

// The terms of each run's rows lie one behind the other.
void add_up(const at::Tensor& terms, const std::vector<Range>& runs, int copies,
            const at::Tensor& to_M) {
  std::int64_t begin = 0;
  for (const Range& run : runs) {
    const at::Tensor to = rows_in(to_M, run);
    std::vector<std::int64_t> sizes = to.sizes().vec();
    sizes.insert(sizes.begin(), copies);
    to.copy_(terms.narrow(0, begin, copies * run.size()).view(sizes).sum(0));
    begin += copies * run.size();
  }
}

// Where each rank's rows for each expert lie, ranks first or experts first; listed the other way.
std::vector<Range> runs_of(const at::Tensor& counts_GE, bool arrived) {
  const auto counts = counts_GE.accessor<std::int64_t, 2>();
  const std::int64_t ranks = counts.size(0), experts = counts.size(1);
  std::vector<Range> runs(static_cast<std::size_t>(ranks * experts));
  std::int64_t begin = 0;
  const auto place = [&](std::int64_t g, std::int64_t e) {
    const std::int64_t listed = arrived ? e * ranks + g : g * experts + e;
    runs[static_cast<std::size_t>(listed)] = {begin, begin + counts[g][e]};
    begin += counts[g][e];
  };
  if (arrived) {
    for (std::int64_t g = 0; g < ranks; ++g) {
      for (std::int64_t e = 0; e < experts; ++e) place(g, e);
    }
  } else {
    for (std::int64_t e = 0; e < experts; ++e) {
      for (std::int64_t g = 0; g < ranks; ++g) place(g, e);
    }
  }
  return runs;
}

}  // namespace

ExpertParallel::ExpertParallel(Communicator& group, const TensorSplit& split, int chunks)
    : group_(group),
      split_(split.expert_split()),
      slices_(split.expert_slices()),
      slice_(split.expert_slice(split.rank)),
      copies_(split.expert_copies()),
      chunks_(chunks) {
  CHECK(group.size() == split.exchange_ranks(), "{} ranks exchange rows for ep {} and {} shares",
        group.size(), split_.ep, copies_);
}

std::vector<Range> ExpertParallel::pieces(const ExpertTraffic& traffic) const {
  const int count = static_cast<int>(std::min<std::int64_t>(chunks_, traffic.held()));
  std::vector<Range> pieces;
  for (int i = 0; i < count; ++i) pieces.push_back(piece(traffic.held(), count, i));
  return pieces;
}

std::vector<Range> ExpertParallel::runs(const ExpertTraffic& traffic, Range experts) const {
  const auto at = [&](std::int64_t e) { return traffic.sent[static_cast<std::size_t>(e)]; };
  std::vector<Range> runs;
  for (std::int64_t holder = 0; holder < split_.ep; ++holder) {
    const std::int64_t first = holder * traffic.held();
    runs.push_back({at(first + experts.begin), at(first + experts.end)});
  }
  return runs;
}

at::Tensor ExpertParallel::exchange_counts(std::span<const std::int64_t> sent) const {
  const auto experts = static_cast<std::int64_t>(sent.size()) - 1;
  const std::int64_t here = experts / split_.ep;
  const at::Tensor told_GE = at::empty({group_.size(), here}, at::kLong);
  auto told = told_GE.accessor<std::int64_t, 2>();
  for (std::int64_t g = 0; g < group_.size(); ++g) {
    for (std::int64_t e = 0; e < here; ++e) {
      const auto expert = static_cast<std::size_t>(g / copies_ * here + e);
      told[g][e] = sent[expert + 1] - sent[expert];
    }
  }
  const std::vector<std::int64_t> ones(static_cast<std::size_t>(group_.size()), 1);
  at::Tensor counts_GE = at::empty_like(told_GE);
  group_.all_to_all(counts_GE, told_GE, ones, ones).wait();
  return counts_GE;
}

ExpertTraffic ExpertParallel::traffic(std::span<const std::int64_t> sent) const {
  return traffic(sent, exchange_counts(sent));
}

ExpertTraffic ExpertParallel::traffic(std::span<const std::int64_t> sent,
                                      at::Tensor counts_GE) const {
  ExpertTraffic traffic;
  traffic.sent.assign(sent.begin(), sent.end());
  traffic.begin.push_back(0);
  for (const std::int64_t rows : values_of(counts_GE.sum(0))) {
    traffic.begin.push_back(traffic.begin.back() + rows);
  }
  traffic.counts_GE = std::move(counts_GE);
  return traffic;
}

std::vector<std::int64_t> ExpertParallel::by_rank(const std::vector<Range>& runs) const {
  std::vector<std::int64_t> rows;
  for (const Range& run : runs) {
    rows.insert(rows.end(), static_cast<std::size_t>(copies_), run.size());
  }
  return rows;
}

Arriving ExpertParallel::dispatch(const at::Tensor& rows_M, const ExpertTraffic& traffic,
                                  Range experts) const {
  const std::vector<Range> runs = this->runs(traffic, experts);
  std::vector<Range> sent;
  for (const Range& run : runs) sent.insert(sent.end(), static_cast<std::size_t>(copies_), run);
  const at::Tensor counts_GE = traffic.counts_GE.narrow(1, experts.begin, experts.size());
  at::Tensor arrived = rows_like(rows_M, traffic.rows(experts).size());
  Work work = group_.all_to_all(arrived, in_order(rows_M, sent), values_of(counts_GE.sum(1)),
                                by_rank(runs));
  return {std::move(arrived), std::move(work),
          [counts_GE](const at::Tensor& x) { return in_order(x, runs_of(counts_GE, true)); }};
}

Arriving ExpertParallel::collect(const at::Tensor& rows_X, const ExpertTraffic& traffic,
                                 Range experts, const at::Tensor& to_M) const {
  const std::vector<Range> runs = this->runs(traffic, experts);
  const std::vector<std::int64_t> from = by_rank(runs);
  const at::Tensor counts_GE = traffic.counts_GE.narrow(1, experts.begin, experts.size());
  const bool in_place = copies_ == 1 && experts.size() == traffic.held();
  at::Tensor back = in_place ? to_M : rows_like(rows_X, sum(from));
  Work work = group_.all_to_all(back, in_order(rows_X, runs_of(counts_GE, false)), from,
                                values_of(counts_GE.sum(1)));
  return {std::move(back), std::move(work),
          [in_place, runs, copies = copies_, to_M](const at::Tensor& terms) {
            if (!in_place) add_up(terms, runs, copies, to_M);
            return to_M;
          }};
}

std::vector<int> expert_exchange(const Mesh& mesh) {
  const int etp = mesh.degree(Axis::kEtp);
  const int shares = std::min(mesh.degree(Axis::kTp), etp);
  const std::vector<int> block = mesh.group(AxisSet{Axis::kEp, Axis::kEtp});
  std::vector<int> ranks;
  for (std::size_t i = 0; i < block.size(); ++i) {
    const int share = static_cast<int>(i) % etp;
    if (share % shares == mesh.coord(Axis::kEtp) % shares) ranks.push_back(block[i]);
  }
  return ranks;
}

}  // namespace quatrain
