// SPDX-License-Identifier: Apache-2.0
// Interleaved 1F1B (Narayanan et al., arXiv:2104.04473, section 2.2.2) and its form with split
// backward. A rank works through a table of (micro-batch, chunk): groups of micro-batches, each
// group through all chunks; backwards take the same table with the chunks reversed.
//
// PyTorch makes as many equal groups as there are p micro-batches and refuses counts that do not
// divide; here the groups may differ by one.
#include <algorithm>
#include <deque>

#include "quatrain/schedule/build.h"
#include "quatrain/schedule/schedule.h"

namespace quatrain {
namespace {

struct Item {
  int chunk;
  int microbatch;
};

std::vector<int> group_sizes(int num_ranks, int num_microbatches, int group) {
  std::vector<int> sizes;
  if (group == 0) {
    const int groups = std::max(1, num_microbatches / num_ranks);
    for (int g = 0; g < groups; ++g) {
      sizes.push_back(num_microbatches / groups + (g < num_microbatches % groups ? 1 : 0));
    }
    return sizes;
  }
  for (int left = num_microbatches; left > 0; left -= group) sizes.push_back(std::min(left, group));
  return sizes;
}

std::vector<Item> table(const std::vector<int>& groups, int chunks, bool backward) {
  std::vector<Item> items;
  int first = 0;
  for (int size : groups) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int m = first; m < first + size; ++m) {
        items.push_back({backward ? chunks - 1 - chunk : chunk, m});
      }
    }
    first += size;
  }
  return items;
}

struct Shape {
  int num_ranks;
  int chunks;
  int num_microbatches;
  int group;
  int per_hop;  // forwards of warm-up for each rank behind
  bool split;
};

void write_row(Schedule& schedule, int rank, const Shape& shape) {
  const std::vector<int> groups = group_sizes(shape.num_ranks, shape.num_microbatches, shape.group);
  const std::vector<Item> forwards = table(groups, shape.chunks, false);
  const std::vector<Item> backwards = table(groups, shape.chunks, true);
  const auto stage = [&](const Item& item) { return item.chunk * shape.num_ranks + rank; };
  const int wanted =
      shape.per_hop * (shape.num_ranks - 1 - rank) + (shape.chunks - 1) * groups.front();
  const std::size_t warmup = std::min(forwards.size(), static_cast<std::size_t>(wanted));

  RowWriter row(schedule, rank);
  std::deque<Item> weights;
  const auto weight = [&] {
    row.weight(stage(weights.front()), weights.front().microbatch);
    weights.pop_front();
  };
  for (std::size_t i = 0; i < warmup; ++i) row.forward(stage(forwards[i]), forwards[i].microbatch);
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (i + warmup < forwards.size()) {
      row.forward(stage(forwards[i + warmup]), forwards[i + warmup].microbatch);
    }
    const Item& back = backwards[i];
    if (!shape.split) {
      row.backward(stage(back), back.microbatch);
      continue;
    }
    row.input(stage(back), back.microbatch);
    weights.push_back(back);
    if (weights.size() > static_cast<std::size_t>(rank)) weight();
  }
  while (!weights.empty()) weight();
}

Schedule interleaved(const Shape& shape) {
  CHECK(shape.group >= 0, "groups of {}", shape.group);
  Schedule schedule =
      empty_schedule(StagePlacement::kLoop, shape.num_ranks, shape.chunks, shape.num_microbatches);
  for (int rank = 0; rank < shape.num_ranks; ++rank) write_row(schedule, rank, shape);
  return schedule;
}

}  // namespace

Schedule interleaved_1f1b(int num_ranks, int chunks, int num_microbatches, int group) {
  return interleaved({num_ranks, chunks, num_microbatches, group, 2, false});
}

Schedule interleaved_zb1p(int num_ranks, int chunks, int num_microbatches, int group) {
  return interleaved({num_ranks, chunks, num_microbatches, group, 1, true});
}

}  // namespace quatrain
