// SPDX-License-Identifier: Apache-2.0
// What tensor and sequence parallelism send: the residual stream is a matrix of rows, whole on
// every rank of tp or cut among them; a column-parallel product reads it whole, a row-parallel one
// leaves a sum to be made (Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al.,
// arXiv:2205.05198, section 4.2.2). All prices are conversion()'s.
#pragma once
#include <cstdint>

#include "quatrain/cost/walk.h"
#include "quatrain/mesh/mesh.h"
#include "quatrain/mesh/placement.h"

namespace quatrain {

// Each call books what it sends with an operation's pass.
class ResidualWire {
 public:
  ResidualWire(const WorkShape& shape, std::int64_t hidden);

  std::int64_t rows() const { return rows_; }  // of the micro-batch
  std::int64_t own_rows() const;               // of them, on this rank

  void to_whole(OpCost& op, ActionKind pass) const;
  void to_rows(OpCost& op, ActionKind pass) const;
  // A product cut in pieces of rows: each piece is summed by itself, empty ones are not.
  void to_rows_in_chunks(OpCost& op, ActionKind pass) const;
  // A sum of `columns` numbers of each row that every rank gets.
  void sum_whole(OpCost& op, ActionKind pass, std::int64_t columns, Bytes element) const;
  // Maximum, sum of exponentials and label's logit of each row of `chunk_rows`: float64, from all.
  void loss_rows(OpCost& op, std::int64_t chunk_rows) const;

 private:
  void sum_rows(OpCost& op, ActionKind pass, std::int64_t rows) const;
  std::int64_t rows_of_chunk(int index) const;

  Mesh mesh_;
  ShardSpec layout_;  // of the residual stream
  std::int64_t rows_, hidden_;
  int chunks_;
  Bytes element_;
};

}  // namespace quatrain
