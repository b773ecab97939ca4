// SPDX-License-Identifier: Apache-2.0
// Which boxes of a tensor a rank holds.
#include "quatrain/mesh/placement.h"

#include <fmt/format.h>

#include <algorithm>

#include "quatrain/base/check.h"
#include "quatrain/mesh/cut.h"

namespace quatrain {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;  // Clang 14 does not deduce it for aggregates

std::string to_text(const Placement& placement) {
  return std::visit(Overloaded{[](Replicate) -> std::string { return "replicate"; },
                               [](const Shard& shard) {
                                 std::string text = fmt::format("shard dim {}", shard.dim);
                                 if (shard.repeat != 1)
                                   text += fmt::format(" repeat {}", shard.repeat);
                                 if (shard.grain != 1)
                                   text += fmt::format(" grain {}", shard.grain);
                                 if (shard.layout == Layout::kZigzag) text += " zigzag";
                                 return text;
                               },
                               [](Partial partial) -> std::string {
                                 switch (partial.op) {
                                   case ReduceOp::kSum:
                                     return "partial sum";
                                   case ReduceOp::kMax:
                                     return "partial max";
                                   case ReduceOp::kMin:
                                     return "partial min";
                                 }
                                 return "partial";
                               }},
                    placement);
}

// [begin, end) of the ranges laid end to end, as ranges of the original.
std::vector<Range> subrange(const std::vector<Range>& ranges, Range wanted) {
  std::vector<Range> result;
  std::int64_t at = 0;
  for (const Range& range : ranges) {
    const std::int64_t begin = std::max(wanted.begin, at);
    const std::int64_t end = std::min(wanted.end, at + range.size());
    if (begin < end) result.push_back({range.begin + begin - at, range.begin + end - at});
    at += range.size();
  }
  return result;
}

std::int64_t total(const std::vector<Range>& ranges) {
  std::int64_t size = 0;
  for (const Range& range : ranges) size += range.size();
  return size;
}

// Appends, and joins ranges that touch.
void append(std::vector<Range>& to, const std::vector<Range>& more) {
  for (const Range& range : more) {
    if (!to.empty() && to.back().end == range.begin) {
      to.back().end = range.end;
    } else {
      to.push_back(range);
    }
  }
}

std::vector<std::vector<Range>> ranges_of(const ShardSpec& spec,
                                          std::span<const std::int64_t> global, const Mesh& mesh) {
  std::vector<std::vector<Range>> ranges;
  for (std::int64_t size : global) ranges.push_back({{0, size}});
  AxisSet seen;
  for (const ShardSpec::On& on : spec.on) {
    CHECK(!on.axes.intersects(seen), "{} places an axis twice", to_string(spec));
    seen = seen | on.axes;
    const auto* shard = std::get_if<Shard>(&on.placement);
    if (shard == nullptr) continue;
    CHECK(shard->dim >= 0 && static_cast<std::size_t>(shard->dim) < global.size(),
          "{} of a tensor with {} dims", to_string(spec), global.size());
    auto& dim = ranges[static_cast<std::size_t>(shard->dim)];
    dim = cut_ranges(dim, *shard, mesh.degree(on.axes), mesh.coord(on.axes));
  }
  return ranges;
}

}  // namespace

std::int64_t Box::numel() const {
  std::int64_t result = 1;
  for (std::int64_t n : size) result *= n;
  return result;
}

Range piece(std::int64_t size, int pieces, int index, std::int64_t grain) {
  CHECK(size >= 0 && grain >= 1 && pieces >= 1 && index >= 0 && index < pieces,
        "piece {} of {} of {} elements in grains of {}", index, pieces, size, grain);
  const std::int64_t units = (size + grain - 1) / grain;
  const std::int64_t each = units / pieces;
  const std::int64_t longer = units % pieces;
  const std::int64_t begin = index * each + std::min<std::int64_t>(index, longer);
  const std::int64_t end = begin + each + (index < longer ? 1 : 0);
  return {std::min(size, begin * grain), std::min(size, end * grain)};
}

std::vector<Range> cut(std::int64_t size, const Shard& shard, int degree, int coord) {
  CHECK(shard.repeat >= 1 && degree % shard.repeat == 0, "repeat {} does not divide {} ranks",
        shard.repeat, degree);
  const int pieces = degree / shard.repeat;
  const int index = coord / shard.repeat;
  switch (shard.layout) {
    case Layout::kBlock:
      return {piece(size, pieces, index, shard.grain)};
    case Layout::kZigzag:
      return {piece(size, 2 * pieces, index, shard.grain),
              piece(size, 2 * pieces, 2 * pieces - 1 - index, shard.grain)};
  }
  return {};
}

std::vector<Range> cut_ranges(const std::vector<Range>& ranges, const Shard& shard, int degree,
                              int coord) {
  std::vector<Range> result;
  for (const Range& part : cut(total(ranges), shard, degree, coord)) {
    append(result, subrange(ranges, part));
  }
  if (result.empty()) {
    const std::int64_t at = ranges.empty() ? 0 : ranges.front().begin;
    result.push_back({at, at});
  }
  return result;
}

std::vector<Box> ShardSpec::boxes(std::span<const std::int64_t> global, const Mesh& mesh) const {
  std::vector<Box> boxes(1);
  for (const std::vector<Range>& ranges : ranges_of(*this, global, mesh)) {
    std::vector<Box> longer;
    for (const Box& box : boxes) {
      for (const Range& range : ranges) {
        longer.push_back(box);
        longer.back().begin.push_back(range.begin);
        longer.back().size.push_back(range.size());
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

std::vector<std::int64_t> ShardSpec::local_shape(std::span<const std::int64_t> global,
                                                 const Mesh& mesh) const {
  std::vector<std::int64_t> shape;
  for (const std::vector<Range>& ranges : ranges_of(*this, global, mesh)) {
    shape.push_back(total(ranges));
  }
  return shape;
}

std::string to_string(const ShardSpec& spec) {
  std::string text;
  for (const ShardSpec::On& on : spec.on) {
    if (!text.empty()) text += ", ";
    text += fmt::format("{}: {}", to_string(on.axes), to_text(on.placement));
  }
  return text.empty() ? "replicate" : text;
}

}  // namespace quatrain
