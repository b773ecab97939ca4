// SPDX-License-Identifier: Apache-2.0
// Covering arrays of strength 3 under constraints: rows that together hold every triple of values
// of any three factors that some legal row holds. One row at a time, each the best of a few greedy
// ones (AETG: Cohen, Dalal, Fredman, Patton, "The AETG System", IEEE TSE 23(7), 1997). The same
// seed makes the same rows everywhere.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

namespace quatrain {

inline constexpr int kOpen = -1;
using Row = std::vector<int>;  // of each factor the index of its value, or kOpen

// Asked only of rows in which `factors` are all chosen.
struct RowRule {
  std::vector<std::size_t> factors;
  std::function<bool(const Row&)> refuses;
};

struct RowSpace {
  std::vector<int> sizes;  // number of values of each factor
  std::vector<RowRule> rules;
};

// No rule that can be asked refuses.
inline bool legal(const RowSpace& space, const Row& row) {
  for (const RowRule& rule : space.rules) {
    bool chosen = true;
    for (const std::size_t factor : rule.factors) chosen = chosen && row[factor] != kOpen;
    if (chosen && rule.refuses(row)) return false;
  }
  return true;
}

// Whether some legal row agrees with `row` where it is chosen: by trying, exactly.
inline bool completes(const RowSpace& space, Row& row, std::size_t from = 0) {
  if (from == 0 && !legal(space, row)) return false;
  while (from < row.size() && row[from] != kOpen) ++from;
  if (from == row.size()) return true;
  bool found = false;
  for (int value = 0; value < space.sizes[from] && !found; ++value) {
    row[from] = value;
    found = legal(space, row) && completes(space, row, from + 1);
  }
  row[from] = kOpen;
  return found;
}

// Triples of (factor, value), each set marked once; factors ascend.
class TripleSet {
 public:
  explicit TripleSet(const std::vector<int>& sizes) {
    for (const int size : sizes) {
      first_.push_back(values_);
      values_ += static_cast<std::size_t>(size);
    }
    marks_.assign(values_ * values_ * values_, false);
  }
  using Triple = std::array<std::size_t, 3>;  // factors
  bool has(const Row& row, const Triple& t) const { return marks_[place(row, t)]; }
  std::size_t count() const { return count_; }
  void set(const Row& row, const Triple& t, bool value) {
    const std::size_t at = place(row, t);
    if (marks_[at] != value) count_ += value ? 1 : static_cast<std::size_t>(-1);
    marks_[at] = value;
  }

 private:
  std::size_t place(const Row& row, const Triple& t) const {
    std::size_t at = 0;
    for (const std::size_t f : t) at = at * values_ + first_[f] + static_cast<std::size_t>(row[f]);
    return at;
  }
  std::vector<std::size_t> first_;
  std::size_t values_ = 0;
  std::size_t count_ = 0;
  std::vector<bool> marks_;
};

template <typename Visit>
void for_each_factor_triple(std::size_t factors, const Visit& visit) {
  for (std::size_t a = 0; a < factors; ++a) {
    for (std::size_t b = a + 1; b < factors; ++b) {
      for (std::size_t c = b + 1; c < factors; ++c) visit(TripleSet::Triple{a, b, c});
    }
  }
}

template <typename Visit>
void for_each_triple(const std::vector<int>& sizes, const Visit& visit) {
  for_each_factor_triple(sizes.size(), [&](const TripleSet::Triple& t) {
    Row row(sizes.size(), kOpen);
    for (row[t[0]] = 0; row[t[0]] < sizes[t[0]]; ++row[t[0]]) {
      for (row[t[1]] = 0; row[t[1]] < sizes[t[1]]; ++row[t[1]]) {
        for (row[t[2]] = 0; row[t[2]] < sizes[t[2]]; ++row[t[2]]) visit(row, t);
      }
    }
  });
}

class CoveringArray {
 public:
  CoveringArray(RowSpace space, std::uint32_t seed)
      : space_(std::move(space)), open_(space_.sizes), random_(seed) {
    for_each_triple(space_.sizes, [&](Row row, const TripleSet::Triple& t) {
      if (completes(space_, row)) open_.set(row, t, true);
    });
    triples_ = open_.count();
    while (open_.count() > 0) add_row();
  }
  const std::vector<Row>& rows() const { return rows_; }
  std::size_t triples() const { return triples_; }  // legal ones, all covered

 private:
  static constexpr int kCandidates = 4;

  void add_row() {
    const Row start = an_open_triple();
    Row best;
    std::size_t most = 0;
    for (int i = 0; i < kCandidates; ++i) {
      Row row = filled(start);
      const std::size_t gain = open_in(row);
      if (gain > most) {
        most = gain;
        best = std::move(row);
      }
    }
    for_each_factor_triple(best.size(),
                           [&](const TripleSet::Triple& t) { open_.set(best, t, false); });
    rows_.push_back(std::move(best));
  }

  std::size_t below(std::size_t n) { return random_() % n; }

  Row an_open_triple() {
    std::size_t skip = below(open_.count());
    Row found;
    for_each_triple(space_.sizes, [&](const Row& row, const TripleSet::Triple& t) {
      if (found.empty() && open_.has(row, t) && skip-- == 0) found = row;
    });
    return found;
  }

  std::size_t open_in(const Row& row) const {
    std::size_t sum = 0;
    for_each_factor_triple(row.size(), [&](const TripleSet::Triple& t) {
      if (open_.has(row, t)) ++sum;
    });
    return sum;
  }

  // Factors in random order, each at the value that closes the most triples.
  Row filled(Row row) {
    std::vector<std::size_t> order;
    for (std::size_t f = 0; f < row.size(); ++f) {
      if (row[f] == kOpen) order.push_back(f);
    }
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i)]);
    for (const std::size_t factor : order) row[factor] = best_value(row, factor);
    return row;
  }

  int best_value(Row row, std::size_t factor) {
    const int size = space_.sizes[factor];
    const int turn = static_cast<int>(below(static_cast<std::size_t>(size)));
    int best = kOpen;
    std::size_t most = 0;
    for (int i = 0; i < size; ++i) {
      row[factor] = (i + turn) % size;
      const std::size_t gain = open_with(row, factor);
      if ((best != kOpen && gain <= most) || !completes(space_, row)) continue;
      best = row[factor];
      most = gain;
    }
    return best;
  }

  // Open triples of `factor` and two others that are chosen.
  std::size_t open_with(const Row& row, std::size_t factor) const {
    std::size_t sum = 0;
    for (std::size_t a = 0; a < row.size(); ++a) {
      if (a == factor || row[a] == kOpen) continue;
      for (std::size_t b = a + 1; b < row.size(); ++b) {
        if (b == factor || row[b] == kOpen) continue;
        TripleSet::Triple t{a, b, factor};
        if (factor < a) t = {factor, a, b};
        if (a < factor && factor < b) t = {a, factor, b};
        if (open_.has(row, t)) ++sum;
      }
    }
    return sum;
  }

  RowSpace space_;
  TripleSet open_;
  std::mt19937 random_;
  std::vector<Row> rows_;
  std::size_t triples_ = 0;
};

}  // namespace quatrain
