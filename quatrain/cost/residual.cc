// SPDX-License-Identifier: Apache-2.0
#include "quatrain/cost/residual.h"

#include <algorithm>
#include <array>
#include <vector>

#include "quatrain/cost/local.h"

namespace quatrain {
namespace {

ShardSpec whole() { return {}; }
ShardSpec cut_rows() { return {{{Axis::kTp, Shard{.dim = 0}}}}; }
ShardSpec unsummed() { return {{{Axis::kTp, Partial{}}}}; }

void book(OpCost& op, ActionKind pass, const std::vector<Collective>& list,
          std::int64_t times = 1) {
  for (const Collective& sent : list) {
    const auto same = [&](const OpWire& w) {
      return w.pass == pass && w.operation == sent.kind && w.axes == sent.axes;
    };
    auto entry = std::find_if(op.wire.begin(), op.wire.end(), same);
    if (entry == op.wire.end()) {
      entry = op.wire.insert(entry, {pass, sent.kind, sent.axes, 0, {}});
    }
    entry->calls += times;
    entry->bytes += times * sent.bytes_sent;
  }
}

}  // namespace

ResidualWire::ResidualWire(const WorkShape& shape, std::int64_t hidden)
    : mesh_(tensor_mesh(shape.split)),
      layout_(cuts_rows(shape.split) ? cut_rows() : whole()),
      rows_(shape.batch * shape.seq),
      hidden_(hidden),
      chunks_(shape.overlap_chunks),
      element_{size_of(shape.dtype)} {}

std::int64_t ResidualWire::own_rows() const {
  return layout_.local_shape(std::array{rows_, hidden_}, mesh_)[0];
}

void ResidualWire::to_whole(OpCost& op, ActionKind pass) const {
  book(op, pass, conversion(layout_, whole(), std::array{rows_, hidden_}, element_, mesh_));
}

void ResidualWire::to_rows(OpCost& op, ActionKind pass) const { sum_rows(op, pass, rows_); }

void ResidualWire::sum_rows(OpCost& op, ActionKind pass, std::int64_t rows) const {
  book(op, pass, conversion(unsummed(), layout_, std::array{rows, hidden_}, element_, mesh_));
}

void ResidualWire::to_rows_in_chunks(OpCost& op, ActionKind pass) const {
  for (int i = 0; i < chunks_; ++i) {
    if (const std::int64_t rows = rows_of_chunk(i); rows > 0) sum_rows(op, pass, rows);
  }
}

// Where rows are cut, the i-th piece of each rank's own: the ranks' pieces of one chunk are the
// even ones of its sum, so conversion() knows them.
std::int64_t ResidualWire::rows_of_chunk(int index) const {
  if (layout_ == whole()) return piece(rows_, chunks_, index).size();
  const int ranks = mesh_.degree(Axis::kTp);
  std::int64_t sum = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    sum += piece(piece(rows_, ranks, rank).size(), chunks_, index).size();
  }
  return sum;
}

void ResidualWire::sum_whole(OpCost& op, ActionKind pass, std::int64_t columns,
                             Bytes element) const {
  book(op, pass, conversion(unsummed(), whole(), std::array{rows_, columns}, element, mesh_));
}

void ResidualWire::loss_rows(OpCost& op, std::int64_t chunk_rows) const {
  const std::int64_t ranks = mesh_.degree(Axis::kTp);
  const auto chunks = [&](std::int64_t rows, std::int64_t count) {
    const std::array shape{ranks * rows, std::int64_t{3}};
    book(op, ActionKind::kForward, conversion(cut_rows(), whole(), shape, {sizeof(double)}, mesh_),
         count);
  };
  if (rows_ >= chunk_rows) chunks(chunk_rows, rows_ / chunk_rows);
  if (rows_ % chunk_rows > 0) chunks(rows_ % chunk_rows, 1);
}

}  // namespace quatrain
