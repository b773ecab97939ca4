// SPDX-License-Identifier: Apache-2.0
#include "quatrain/checkpoint/box.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "quatrain/base/text.h"

namespace quatrain {
namespace {

// Dims from here on are whole, so a run spans them and one dim more.
std::size_t first_whole_dim(std::span<const std::int64_t> size,
                            std::span<const std::int64_t> shape) {
  std::size_t dim = size.size();
  while (dim > 0 && size[dim - 1] == shape[dim - 1]) --dim;
  return dim;
}

// Elements between neighbours of each dim.
std::vector<std::int64_t> strides_of(std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t dim = shape.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * shape[dim];
  return strides;
}

}  // namespace

std::optional<Box> intersection(const Box& a, const Box& b) {
  Box both{a.begin, a.size};
  for (std::size_t dim = 0; dim < a.begin.size(); ++dim) {
    const std::int64_t end = std::min(a.begin[dim] + a.size[dim], b.begin[dim] + b.size[dim]);
    both.begin[dim] = std::max(a.begin[dim], b.begin[dim]);
    both.size[dim] = end - both.begin[dim];
    if (both.size[dim] <= 0) return std::nullopt;
  }
  return both;
}

bool inside(const Box& box, std::span<const std::int64_t> shape) {
  if (box.begin.size() != shape.size() || box.size.size() != shape.size()) return false;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    // Why: written without a sum, which a stranger's numbers could overflow.
    if (box.begin[dim] < 0 || box.size[dim] < 0 || box.begin[dim] > shape[dim] ||
        box.size[dim] > shape[dim] - box.begin[dim]) {
      return false;
    }
  }
  return true;
}

bool contains(const Box& outer, const Box& inner) {
  return inside(relative_to(inner, outer.begin), outer.size);
}

Box relative_to(const Box& box, std::span<const std::int64_t> origin) {
  Box moved = box;
  for (std::size_t dim = 0; dim < origin.size(); ++dim) moved.begin[dim] -= origin[dim];
  return moved;
}

Box whole_box(std::span<const std::int64_t> shape) {
  return {std::vector<std::int64_t>(shape.size(), 0), {shape.begin(), shape.end()}};
}

std::string to_string(const Box& box) {
  std::vector<std::string> ranges;
  for (std::size_t dim = 0; dim < box.begin.size(); ++dim) {
    ranges.push_back(fmt::format("{}:{}", box.begin[dim], box.begin[dim] + box.size[dim]));
  }
  return "[" + join(ranges, ", ") + "]";
}

std::string coverage_fault(std::span<const Box> boxes, std::span<const std::int64_t> shape) {
  std::vector<const Box*> order;
  std::int64_t covered = 0;
  for (const Box& box : boxes) {
    if (!inside(box, shape)) {
      return fmt::format("{} lies outside of [{}]", to_string(box), join(shape, ", "));
    }
    covered += box.numel();
    if (box.numel() > 0) order.push_back(&box);
  }
  const auto begin = [](const Box* box) { return box->begin.empty() ? 0 : box->begin[0]; };
  const auto end = [&](const Box* box) {
    return box->size.empty() ? 1 : begin(box) + box->size[0];
  };
  std::sort(order.begin(), order.end(),
            [&](const Box* a, const Box* b) { return begin(a) < begin(b); });
  for (auto a = order.begin(); a != order.end(); ++a) {
    for (auto b = a + 1; b != order.end() && begin(*b) < end(*a); ++b) {
      if (intersection(**a, **b)) {
        return fmt::format("{} and {} overlap", to_string(**a), to_string(**b));
      }
    }
  }
  const std::int64_t all = elements(shape);
  if (covered == all) return "";
  return fmt::format("{} of {} elements are covered", with_commas(covered), with_commas(all));
}

Runs runs_of(const Box& box, std::span<const std::int64_t> shape) {
  const std::size_t whole = first_whole_dim(box.size, shape);
  const std::size_t outer = whole == 0 ? 0 : whole - 1;  // dims that separate runs
  const std::vector<std::int64_t> strides = strides_of(shape);
  Runs runs{.length = elements(std::span(box.size).subspan(outer))};
  if (box.numel() == 0) return runs;
  for_each_index(std::span(box.size).first(outer), [&](std::span<const std::int64_t> index) {
    std::int64_t first = 0;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      first += (box.begin[dim] + (dim < outer ? index[dim] : 0)) * strides[dim];
    }
    runs.begins.push_back(first);
  });
  return runs;
}

void copy_region(const BoxMemory& to, const BoxMemory& from, const Box& region,
                 std::int64_t itemsize) {
  const Runs into = runs_of(relative_to(region, to.box->begin), to.box->size);
  const Runs out_of = runs_of(relative_to(region, from.box->begin), from.box->size);
  // The longer runs hold whole numbers of the shorter, since both end at the ends of a dim.
  const std::int64_t step = std::min(into.length, out_of.length);
  if (step == 0) return;
  const auto place = [&](const Runs& runs, std::int64_t done) {
    return (runs.begins[static_cast<std::size_t>(done / runs.length)] + done % runs.length) *
           itemsize;
  };
  const std::int64_t all = region.numel();
  for (std::int64_t done = 0; done < all; done += step) {
    std::memcpy(to.data + place(into, done), from.data + place(out_of, done),
                static_cast<std::size_t>(step * itemsize));
  }
}

}  // namespace quatrain
