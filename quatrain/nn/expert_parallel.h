// SPDX-License-Identifier: Apache-2.0
// Where a layer's experts are, and the rows that go to them and come back (GShard,
// arXiv:2006.16668; parallel folding, arXiv:2504.14960). A block of ep x etp neighbouring ranks
// holds every expert once; its ranks read different micro-batches, or share some along tp.
//
//   etp = tp   every rank sends all rows that it routes; shares of an expert's width meet along tp
//   etp < tp   ranks of tp that hold different shares of the experts each send a slice of the rows
//   etp > tp   a row goes to etp / tp ranks, each with a share of the expert's width
//
// What comes back are terms, of the sum over tp that a block of layers ends with anyway.
// Shapes: N rows of the micro-batch, M choices of those that this rank sends, by expert; X rows
// that arrive here, by expert and then by where they come from; G ranks that exchange rows.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain {

inline at::Tensor rows_in(const at::Tensor& x, Range rows) {
  return x.narrow(0, rows.begin, rows.size());
}

// One micro-batch's rows for the experts of a layer. Expert e, of all, has the choices
// [sent[e], sent[e + 1]) of the M; of those that are here, the rows [begin[e], begin[e + 1]) of X.
struct ExpertTraffic {
  at::Tensor counts_GE;  // int64: rows from each rank for each expert that is here
  std::vector<std::int64_t> sent, begin;
  std::int64_t held() const { return counts_GE.size(1); }
  std::int64_t arrived() const { return begin.back(); }
  Range rows(Range experts) const { return {at(experts.begin), at(experts.end)}; }

 private:
  std::int64_t at(std::int64_t expert) const { return begin[static_cast<std::size_t>(expert)]; }
};

// Rows on their way.
class [[nodiscard]] Arriving {
 public:
  using Finish = std::function<at::Tensor(const at::Tensor& rows)>;
  Arriving(at::Tensor rows, Work work, Finish finish)
      : rows_(std::move(rows)), work_(std::move(work)), finish_(std::move(finish)) {}
  at::Tensor wait() {
    work_.wait();
    return finish_(std::exchange(rows_, {}));
  }

 private:
  at::Tensor rows_;
  Work work_;
  Finish finish_;
};

class ExpertParallel {
 public:
  // `group` (borrowed): expert_exchange()'s ranks. `chunks`: pieces of an exchange of rows.
  ExpertParallel(Communicator& group, const TensorSplit& split, int chunks = 1);

  // Whether rows leave this rank at all.
  bool moves() const { return group_.size() > 1; }
  // Of a layer's experts those that are here; of a micro-batch's rows those that this rank sends.
  Range held(std::int64_t experts) const { return split_.held(experts); }
  Range sent(std::int64_t rows) const { return piece(rows, slices_, slice_); }
  bool sends_all() const { return slices_ == 1; }
  // Which of the experts that each rank holds are exchanged together, so that some are computed
  // while others' rows are on their way. Not empty.
  std::vector<Range> pieces(const ExpertTraffic& traffic) const;

  // Tells the ranks how many rows come (`sent`: ExpertTraffic's). Collective.
  ExpertTraffic traffic(std::span<const std::int64_t> sent) const;
  // The same again, from the counts that were told.
  ExpertTraffic traffic(std::span<const std::int64_t> sent, at::Tensor counts_GE) const;

  // Of [M, ...] the rows for these of each rank's experts -> of [X, ...] those that arrive here.
  Arriving dispatch(const at::Tensor& rows_M, const ExpertTraffic& traffic, Range experts) const;
  // And the way back, into their places in `to_M`; terms from ranks that share an expert are added.
  Arriving collect(const at::Tensor& rows_X, const ExpertTraffic& traffic, Range experts,
                   const at::Tensor& to_M) const;

 private:
  // Of the choices, those for these experts of each holder: one run a holder.
  std::vector<Range> runs(const ExpertTraffic& traffic, Range experts) const;
  // Rows of each rank that they go to and come back from.
  std::vector<std::int64_t> by_rank(const std::vector<Range>& runs) const;
  at::Tensor exchange_counts(std::span<const std::int64_t> sent) const;

  Communicator& group_;
  ExpertSplit split_;
  int slices_, slice_;  // of a micro-batch's rows
  int copies_;          // ranks that each row goes to
  int chunks_;
};

// The ranks of the mesh that this one exchanges rows with, in the order of experts: of its block
// those with the same shares of what it reads.
std::vector<int> expert_exchange(const Mesh& mesh);

}  // namespace quatrain
