// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/ownership.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/text.h"
#include "quatrain/checkpoint/box.h"
#include "quatrain/mesh/shape.h"

namespace quatrain {
namespace {

struct Holder {
  std::size_t rank;
  std::size_t place;  // in its list
};
// A box of one tensor and all that hold it, by rank.
struct SharedBox {
  const PieceInfo* piece;  // one that holds it
  Box box;
  std::vector<Holder> holders;

  std::int64_t bytes() const { return box.numel() * itemsize_of(piece->dtype); }
};
using Sizes = std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>;
using Groups = std::map<TensorId, std::map<Sizes, SharedBox>>;  // equal boxes of each tensor

Groups group(std::span<const std::vector<PieceInfo>> held) {
  Groups groups;
  for (std::size_t rank = 0; rank < held.size(); ++rank) {
    for (std::size_t place = 0; place < held[rank].size(); ++place) {
      const PieceInfo& piece = held[rank][place];
      auto& boxes = groups[piece.id];
      if (!boxes.empty()) {
        const PieceInfo& first = *boxes.begin()->second.piece;
        CHECK(first.shape == piece.shape && first.dtype == piece.dtype,
              "rank {} holds {} as {} [{}], another rank as {} [{}]", rank, to_string(piece.id),
              piece.dtype, join(piece.shape, ", "), first.dtype, join(first.shape, ", "));
      }
      SharedBox& shared = boxes[{piece.box.begin, piece.box.size}];
      shared.piece = &piece;
      shared.box = piece.box;
      if (!shared.holders.empty() && shared.holders.back().rank == rank) continue;
      shared.holders.push_back({rank, place});
    }
  }
  return groups;
}

std::string coverage_fault_of(const std::vector<SharedBox>& shared) {
  std::vector<Box> boxes;
  for (const SharedBox& one : shared) boxes.push_back(one.box);
  return coverage_fault(boxes, shared.front().piece->shape);
}

// The boxes cut along the edges of all of them: cells that are equal or apart.
std::vector<SharedBox> cells_of(const std::vector<SharedBox>& shared) {
  const std::size_t dims = shared.front().box.begin.size();
  std::vector<std::set<std::int64_t>> edges(dims);
  for (const SharedBox& one : shared) {
    for (std::size_t dim = 0; dim < dims; ++dim) {
      edges[dim].insert({one.box.begin[dim], one.box.begin[dim] + one.box.size[dim]});
    }
  }
  std::map<Sizes, SharedBox> cells;
  for (const SharedBox& one : shared) {
    std::vector<std::vector<std::int64_t>> cuts(dims);
    std::vector<std::int64_t> counts(dims);
    for (std::size_t dim = 0; dim < dims; ++dim) {
      const std::int64_t begin = one.box.begin[dim];
      cuts[dim].assign(edges[dim].lower_bound(begin),
                       edges[dim].upper_bound(begin + one.box.size[dim]));
      counts[dim] = static_cast<std::int64_t>(cuts[dim].size()) - 1;
    }
    for_each_index(counts, [&](std::span<const std::int64_t> index) {
      Box box;
      for (std::size_t dim = 0; dim < dims; ++dim) {
        const auto at = static_cast<std::size_t>(index[dim]);
        box.begin.push_back(cuts[dim][at]);
        box.size.push_back(cuts[dim][at + 1] - cuts[dim][at]);
      }
      SharedBox& cell = cells[{box.begin, box.size}];
      cell.piece = one.piece;
      cell.box = std::move(box);
      cell.holders.insert(cell.holders.end(), one.holders.begin(), one.holders.end());
    });
  }
  std::vector<SharedBox> result;
  for (auto& [sizes, cell] : cells) {
    auto& holders = cell.holders;
    std::stable_sort(holders.begin(), holders.end(),
                     [](const Holder& a, const Holder& b) { return a.rank < b.rank; });
    holders.erase(std::unique(holders.begin(), holders.end(),
                              [](const Holder& a, const Holder& b) { return a.rank == b.rank; }),
                  holders.end());
    result.push_back(std::move(cell));
  }
  return result;
}

// Boxes that make up the tensor, each element once.
std::vector<SharedBox> resolve(const TensorId& id, const std::map<Sizes, SharedBox>& equal) {
  std::vector<SharedBox> boxes;
  for (const auto& [sizes, shared] : equal) boxes.push_back(shared);
  if (coverage_fault_of(boxes).empty()) return boxes;
  boxes = cells_of(boxes);
  const std::string fault = coverage_fault_of(boxes);
  CHECK(fault.empty(), "the ranks' pieces of {} do not make it up: {}", to_string(id), fault);
  return boxes;
}

class Assignment {
 public:
  explicit Assignment(std::size_t ranks) : owned_(ranks), bytes_(ranks, 0) {}

  void give(const Holder& holder, const PieceInfo& piece, Box box) {
    bytes_[holder.rank] += box.numel() * itemsize_of(piece.dtype);
    owned_[holder.rank].push_back({holder.place, std::move(box)});
  }
  // In parts of `part_bytes` or more, to the holders that have least; a part each.
  void share(const SharedBox& shared, std::int64_t part_bytes) {
    const Box& box = shared.box;
    const std::int64_t rows = box.size.empty() ? 1 : box.size[0];
    const std::int64_t most = std::min(rows, static_cast<std::int64_t>(shared.holders.size()));
    const auto parts =
        static_cast<int>(std::clamp<std::int64_t>(shared.bytes() / part_bytes, 1, most));
    std::vector<Holder> holders = shared.holders;
    std::stable_sort(holders.begin(), holders.end(), [this](const Holder& a, const Holder& b) {
      return bytes_[a.rank] < bytes_[b.rank];
    });
    for (int i = 0; i < parts; ++i) {
      Box part = box;
      if (parts > 1) {
        const Range own = piece(rows, parts, i);
        part.begin[0] += own.begin;
        part.size[0] = own.size();
      }
      give(holders[static_cast<std::size_t>(i)], *shared.piece, std::move(part));
    }
  }
  std::vector<std::vector<OwnedBox>> take() {
    for (std::vector<OwnedBox>& boxes : owned_) {
      std::sort(boxes.begin(), boxes.end(),
                [](const OwnedBox& a, const OwnedBox& b) { return a.place < b.place; });
    }
    return std::move(owned_);
  }

 private:
  std::vector<std::vector<OwnedBox>> owned_;  // by rank
  std::vector<std::int64_t> bytes_;           // that it writes
};

}  // namespace

std::vector<std::vector<OwnedBox>> assign_writers(std::span<const std::vector<PieceInfo>> held,
                                                  std::int64_t part_bytes) {
  Assignment assignment(held.size());
  std::vector<SharedBox> shared;  // that several ranks hold
  for (const auto& [id, equal] : group(held)) {
    const SharedBox& any = equal.begin()->second;
    if (elements(any.piece->shape) == 0) {  // its name and shape are worth keeping
      assignment.give(any.holders.front(), *any.piece, any.box);
      continue;
    }
    for (SharedBox& box : resolve(id, equal)) {
      if (box.box.numel() == 0) continue;
      if (box.holders.size() > 1) {
        shared.push_back(std::move(box));
      } else {
        assignment.give(box.holders.front(), *box.piece, box.box);
      }
    }
  }
  // The largest first: the later ones even out what those left uneven.
  std::stable_sort(shared.begin(), shared.end(),
                   [](const SharedBox& a, const SharedBox& b) { return a.bytes() > b.bytes(); });
  for (const SharedBox& box : shared) assignment.share(box, part_bytes);
  return assignment.take();
}

}  // namespace quatrain
