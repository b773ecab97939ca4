// SPDX-License-Identifier: Apache-2.0
#include "quatrain/mesh/row_cut.h"

#include <algorithm>

#include "quatrain/base/check.h"
#include "quatrain/mesh/shape.h"

namespace quatrain {
namespace {

constexpr std::int64_t kVectorStep = 16;

// A parameter in the flat run: cuts inside it lie at begin + i * step.
struct Extent {
  std::int64_t begin;
  std::int64_t end;
  std::int64_t step;
};

std::vector<Extent> lay_out(std::span<const std::vector<std::int64_t>> shapes) {
  std::vector<Extent> extents;
  std::int64_t begin = 0;
  for (const std::vector<std::int64_t>& shape : shapes) {
    CHECK(!shape.empty(), "a scalar parameter has no rows");
    const std::int64_t count = elements(shape);
    const std::int64_t step =
        shape.size() == 1 ? kVectorStep : count / std::max<std::int64_t>(shape[0], 1);
    if (count > 0) extents.push_back({begin, begin + count, step});
    begin += count;
  }
  return extents;
}

// The allowed place nearest to `target`; the lower of two.
std::int64_t nearest(std::span<const Extent> extents, std::int64_t target) {
  const auto found = std::find_if(extents.begin(), extents.end(),
                                  [&](const Extent& e) { return target <= e.end; });
  if (found == extents.end()) return extents.empty() ? 0 : extents.back().end;
  const std::int64_t below = found->begin + (target - found->begin) / found->step * found->step;
  const std::int64_t above = std::min(found->end, below + found->step);
  return target - below <= above - target ? below : above;
}

}  // namespace

std::vector<std::int64_t> row_cuts(std::span<const std::vector<std::int64_t>> shapes, int pieces) {
  CHECK(pieces >= 1, "{} pieces", pieces);
  const std::vector<Extent> extents = lay_out(shapes);
  const std::int64_t total = extents.empty() ? 0 : extents.back().end;
  std::vector<std::int64_t> cuts{0};
  for (int i = 1; i < pieces; ++i) {
    // total * i may not fit where a unit is huge; the quotient's error is below one element a
    // piece.
    const std::int64_t even = total / pieces * i + total % pieces * i / pieces;
    cuts.push_back(std::max(cuts.back(), nearest(extents, even)));
  }
  cuts.push_back(total);
  return cuts;
}

std::vector<std::int64_t> cuts_of_kept(std::span<const std::vector<std::int64_t>> shapes,
                                       const std::vector<bool>& kept,
                                       std::span<const std::int64_t> cuts) {
  CHECK(kept.size() == shapes.size(), "{} marks for {} parameters", kept.size(), shapes.size());
  std::vector<std::int64_t> result(cuts.size(), 0);
  std::int64_t begin = 0;
  for (std::size_t p = 0; p < shapes.size(); ++p) {
    const std::int64_t count = elements(shapes[p]);
    for (std::size_t i = 0; kept[p] && i < cuts.size(); ++i) {
      result[i] += std::clamp<std::int64_t>(cuts[i] - begin, 0, count);
    }
    begin += count;
  }
  return result;
}

std::vector<std::int64_t> sizes_between(std::span<const std::int64_t> cuts) {
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 1; i < cuts.size(); ++i) sizes.push_back(cuts[i] - cuts[i - 1]);
  return sizes;
}

}  // namespace quatrain
