// SPDX-License-Identifier: Apache-2.0
#include "quatrain/nn/expert_parallel.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "quatrain/nn/check.h"

namespace quatrain {
namespace {

std::int64_t sum(const std::vector<std::int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
}

at::Tensor rows_like(const at::Tensor& x, std::int64_t rows) {
  std::vector<std::int64_t> sizes = x.sizes().vec();
  sizes[0] = rows;
  return at::empty(sizes, x.options());
}

struct Run {
  std::int64_t begin, count;
};

at::Tensor in_order(const at::Tensor& rows, const std::vector<Run>& runs) {
  std::vector<at::Tensor> parts;
  for (const Run& run : runs) {
    if (run.count > 0) parts.push_back(rows.narrow(0, run.begin, run.count));
  }
  if (parts.empty()) return rows;
  return parts.size() == 1 ? parts[0] : at::cat(parts);
}

// Where each rank's rows for each expert lie, ranks first or experts first; listed the other way.
std::vector<Run> runs_of(const at::Tensor& counts_GE, bool arrived) {
  const auto counts = counts_GE.accessor<std::int64_t, 2>();
  const std::int64_t ranks = counts.size(0), experts = counts.size(1);
  std::vector<Run> runs(static_cast<std::size_t>(ranks * experts));
  std::int64_t begin = 0;
  const auto place = [&](std::int64_t g, std::int64_t e) {
    const std::int64_t listed = arrived ? e * ranks + g : g * experts + e;
    runs[static_cast<std::size_t>(listed)] = {begin, counts[g][e]};
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

ExpertParallel::ExpertParallel(Communicator& group, const TensorSplit& split)
    : group_(group),
      split_(split.expert_split()),
      slices_(split.expert_slices()),
      slice_(split.expert_slice(split.rank)),
      copies_(split.expert_copies()) {
  CHECK(group.size() == split.exchange_ranks(), "{} ranks exchange rows for ep {} and {} shares",
        group.size(), split_.ep, copies_);
}

// Of the ranks that hold one block of experts the rows for one.
std::vector<std::int64_t> ExpertParallel::choices_by_holder(
    std::span<const std::int64_t> begin) const {
  const std::size_t here = (begin.size() - 1) / static_cast<std::size_t>(split_.ep);
  std::vector<std::int64_t> rows;
  for (std::size_t e = 0; e + 1 < begin.size(); e += here) {
    rows.push_back(begin[e + here] - begin[e]);
  }
  return rows;
}

at::Tensor ExpertParallel::exchange_counts(std::span<const std::int64_t> begin) const {
  const auto experts = static_cast<std::int64_t>(begin.size()) - 1;
  const std::int64_t here = experts / split_.ep;
  const at::Tensor told_GE = at::empty({group_.size(), here}, at::kLong);
  auto told = told_GE.accessor<std::int64_t, 2>();
  for (std::int64_t g = 0; g < group_.size(); ++g) {
    for (std::int64_t e = 0; e < here; ++e) {
      const auto expert = static_cast<std::size_t>(g / copies_ * here + e);
      told[g][e] = begin[expert + 1] - begin[expert];
    }
  }
  const std::vector<std::int64_t> ones(ranks(), 1);
  at::Tensor counts_GE = at::empty_like(told_GE);
  group_.all_to_all(counts_GE, told_GE, ones, ones).wait();
  return counts_GE;
}

ExpertTraffic ExpertParallel::traffic(std::span<const std::int64_t> begin) const {
  return traffic(begin, exchange_counts(begin));
}

ExpertTraffic ExpertParallel::traffic(std::span<const std::int64_t> begin,
                                      at::Tensor counts_GE) const {
  ExpertTraffic traffic;
  for (const std::int64_t rows : choices_by_holder(begin)) {
    traffic.to.insert(traffic.to.end(), static_cast<std::size_t>(copies_), rows);
  }
  const auto counts = counts_GE.accessor<std::int64_t, 2>();
  traffic.from.assign(ranks(), 0);
  traffic.begin.assign(static_cast<std::size_t>(counts.size(1)) + 1, 0);
  for (std::int64_t e = 0; e < counts.size(1); ++e) {
    std::int64_t& end = traffic.begin[static_cast<std::size_t>(e) + 1];
    end = traffic.begin[static_cast<std::size_t>(e)];
    for (std::int64_t g = 0; g < counts.size(0); ++g) {
      traffic.from[static_cast<std::size_t>(g)] += counts[g][e];
      end += counts[g][e];
    }
  }
  traffic.counts_GE = std::move(counts_GE);
  return traffic;
}

Arriving ExpertParallel::dispatch(const at::Tensor& rows_M, const ExpertTraffic& traffic) const {
  std::vector<Run> runs;
  std::int64_t begin = 0;
  for (std::size_t g = 0; g < ranks(); ++g) {
    runs.push_back({begin, traffic.to[g]});
    if ((g + 1) % static_cast<std::size_t>(copies_) == 0) begin += traffic.to[g];
  }
  const at::Tensor sent = copies_ == 1 ? rows_M : in_order(rows_M, runs);
  at::Tensor arrived = rows_like(rows_M, traffic.arrived());
  Work work = group_.all_to_all(arrived, sent, traffic.from, traffic.to);
  return {std::move(arrived), std::move(work), [counts = traffic.counts_GE](const at::Tensor& x) {
            return in_order(x, runs_of(counts, true));
          }};
}

Arriving ExpertParallel::collect(const at::Tensor& rows_X, const ExpertTraffic& traffic) const {
  at::Tensor back = rows_like(rows_X, sum(traffic.to));
  Work work = group_.all_to_all(back, in_order(rows_X, runs_of(traffic.counts_GE, false)),
                                traffic.to, traffic.from);
  if (copies_ == 1) {
    return {std::move(back), std::move(work), [](const at::Tensor& x) { return x; }};
  }
  return {std::move(back), std::move(work),
          [to = traffic.to, copies = copies_](const at::Tensor& x) {
            std::vector<at::Tensor> sums;
            std::int64_t begin = 0;
            for (std::size_t g = 0; g < to.size(); g += static_cast<std::size_t>(copies)) {
              std::vector<std::int64_t> sizes = x.sizes().vec();
              sizes[0] = to[g];
              sizes.insert(sizes.begin(), copies);
              sums.push_back(x.narrow(0, begin, copies * to[g]).view(sizes).sum(0));
              begin += copies * to[g];
            }
            return at::cat(sums);
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
