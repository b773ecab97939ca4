// SPDX-License-Identifier: Apache-2.0
// The ranks that share each matrix of a layer (Shoeybi et al., arXiv:1909.08053, section 3; with
// sequence parallelism Korthikanti et al., arXiv:2205.05198, section 4.2), and the two conversions
// between how activations lie: the residual stream, and what a product with a cut matrix reads and
// leaves. Each is the other's backward, so nothing is placed by hand.
//
//                     residual stream       read by column-parallel    left by row-parallel
//   tensor parallel   all N rows            all N rows                 terms of all N rows
//   and sequence      this rank's R of N    all N rows                 terms of all N rows
//
// Rows of a micro-batch (batch-major) are cut, not sequences: any length works, pieces may be
// uneven or empty, and own rows are neighbours in memory.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "quatrain/comm/communicator.h"
#include "quatrain/mesh/placement.h"
#include "quatrain/spec/tensor_split.h"

namespace quatrain {

struct TensorParallelOptions {
  bool sequence_parallel = false;
  bool gather_again = false;  // weight halves gather their inputs once more; none is kept whole
  int overlap_chunks = 1;     // of a row-parallel product, each summed while the next computes
};

// A conversion in flight.
class [[nodiscard]] Moving {
 public:
  explicit Moving(at::Tensor result, Work work = {})
      : result_(std::move(result)), work_(std::move(work)) {}
  at::Tensor wait() {
    work_.wait();
    return std::move(result_);
  }

 private:
  at::Tensor result_;
  Work work_;
};

class TensorParallel {
 public:
  // `group` (borrowed): the ranks, in the order of their places.
  TensorParallel(Communicator& group, const TensorParallelOptions& options);

  int degree() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  Communicator& group() const { return group_; }
  TensorSplit split() const { return {degree(), rank(), options_.sequence_parallel}; }
  const TensorParallelOptions& options() const { return options_; }

  // Whether the residual stream is cut, and whether products with cut matrices leave terms.
  bool cuts_rows() const { return !to_whole_.empty(); }
  bool sums() const { return !to_rows_.empty(); }
  // Of `rows` of a micro-batch those of this rank's residual stream.
  Range own(std::int64_t rows) const;
  at::Tensor own_rows(const at::Tensor& x_N) const;

  // Residual stream [R, D] -> all rows [N, D]; the gradient of to_rows.
  Moving to_whole(const at::Tensor& x_RD, std::int64_t rows) const;
  // Terms [N, D] (overwritten) -> their sum over ranks as residual stream [R, D]; the gradient of
  // to_whole.
  Moving to_rows(const at::Tensor& terms_ND) const;
  // The same for some rows of each rank: `rows[r]` of rank r lie in `terms` one after another.
  // Without cut rows their number is the first.
  Moving to_rows(const at::Tensor& terms_MD, const std::vector<std::int64_t>& rows) const;

 private:
  std::vector<std::int64_t> rows_of_ranks(std::int64_t rows) const;

  Communicator& group_;
  TensorParallelOptions options_;
  std::vector<Collective> to_whole_;  // conversion()'s lists
  std::vector<Collective> to_rows_;
};

}  // namespace quatrain
