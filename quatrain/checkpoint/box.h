// SPDX-License-Identifier: Apache-2.0
// Arithmetic of boxes, and row-major memory seen through them. A scalar's box has no dims and one
// element.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quatrain/mesh/placement.h"
#include "quatrain/mesh/shape.h"

namespace quatrain {

// The elements that both hold; none when there are none. Both have the same number of dims.
std::optional<Box> intersection(const Box& a, const Box& b);
bool inside(const Box& box, std::span<const std::int64_t> shape);
bool contains(const Box& outer, const Box& inner);
Box relative_to(const Box& box, std::span<const std::int64_t> origin);
Box whole_box(std::span<const std::int64_t> shape);
std::string to_string(const Box& box);  // "[0:4, 8:16]"

// Of boxes that must cover a tensor of `shape`, each element once: an empty text when they do, else
// what is wrong: "[0:2, 0:4] and [1:3, 0:4] overlap", "12 of 16 elements are covered".
std::string coverage_fault(std::span<const Box> boxes, std::span<const std::int64_t> shape);

// Runs of consecutive elements, in row-major order, that make up `box` of a tensor of `shape`.
struct Runs {
  std::int64_t length = 0;             // of each
  std::vector<std::int64_t> begins{};  // first elements
};
Runs runs_of(const Box& box, std::span<const std::int64_t> shape);

// Calls f(index) for every index below `size`, row-major; once when it has no dims.
template <class F>
void for_each_index(std::span<const std::int64_t> size, const F& f) {
  if (elements(size) == 0) return;
  std::vector<std::int64_t> index(size.size(), 0);
  while (true) {
    f(std::span<const std::int64_t>(index));
    std::size_t dim = size.size();
    while (dim > 0 && ++index[dim - 1] == size[dim - 1]) index[--dim] = 0;
    if (dim == 0) return;
  }
}

// A tensor in memory, row-major; `box` says which elements of a larger one it holds.
struct BoxMemory {
  std::byte* data = nullptr;
  const Box* box = nullptr;
};
// Copies the elements of `region`, which lies in both, from one to the other.
void copy_region(const BoxMemory& to, const BoxMemory& from, const Box& region,
                 std::int64_t itemsize);

}  // namespace quatrain
