// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/ownership.h"

#include <algorithm>
#include <map>
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
// One box of one tensor and all that hold it, by rank.
struct SharedBox {
  const PieceInfo* piece;
  std::vector<Holder> holders;
};
using Sizes = std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>>;
using SharedBoxes = std::map<TensorId, std::map<Sizes, SharedBox>>;

SharedBoxes group(std::span<const std::vector<PieceInfo>> held) {
  SharedBoxes groups;
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
      if (!shared.holders.empty() && shared.holders.back().rank == rank) continue;
      shared.holders.push_back({rank, place});
    }
  }
  return groups;
}

void check_coverage(const TensorId& id, const std::map<Sizes, SharedBox>& boxes) {
  std::vector<Box> all;
  for (const auto& [sizes, shared] : boxes) all.push_back({sizes.first, sizes.second});
  const std::string fault = coverage_fault(all, boxes.begin()->second.piece->shape);
  CHECK(fault.empty(), "the ranks' pieces of {} do not make it up: {}", to_string(id), fault);
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
    const Box& box = shared.piece->box;
    const std::int64_t rows = box.size.empty() ? 1 : box.size[0];
    const std::int64_t most = std::min(rows, static_cast<std::int64_t>(shared.holders.size()));
    const auto parts =
        static_cast<int>(std::clamp<std::int64_t>(bytes_of(*shared.piece) / part_bytes, 1, most));
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
  const SharedBoxes groups = group(held);
  Assignment assignment(held.size());
  std::vector<const SharedBox*> shared;  // that several ranks hold
  for (const auto& [id, boxes] : groups) {
    check_coverage(id, boxes);
    const SharedBox& any = boxes.begin()->second;
    if (elements(any.piece->shape) == 0) {  // its name and shape are worth keeping
      assignment.give(any.holders.front(), *any.piece, any.piece->box);
      continue;
    }
    for (const auto& [sizes, box] : boxes) {
      if (box.piece->box.numel() == 0) continue;
      if (box.holders.size() > 1) {
        shared.push_back(&box);
      } else {
        assignment.give(box.holders.front(), *box.piece, box.piece->box);
      }
    }
  }
  // The largest first: the later ones even out what those left uneven.
  std::stable_sort(shared.begin(), shared.end(), [](const SharedBox* a, const SharedBox* b) {
    return bytes_of(*a->piece) > bytes_of(*b->piece);
  });
  for (const SharedBox* box : shared) assignment.share(*box, part_bytes);
  return assignment.take();
}

}  // namespace quatrain
