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

// False where `rule` names a factor that is open.
inline bool refuses(const RowRule& rule, const Row& row) {
  for (const std::size_t factor : rule.factors) {
    if (row[factor] == kOpen) return false;
  }
  return rule.refuses(row);
}

// No rule that can be asked refuses.
inline bool legal(const RowSpace& space, const Row& row) {
  for (const RowRule& rule : space.rules) {
    if (refuses(rule, row)) return false;
  }
  return true;
}

// Whether some legal row agrees with a row where it is chosen: by trying, exactly. Factors that no
// rule names always complete.
class Completion {
 public:
  explicit Completion(const RowSpace& space) : space_(space), rules_of_(space.sizes.size()) {
    for (const RowRule& rule : space.rules) {
      for (const std::size_t factor : rule.factors) rules_of_[factor].push_back(&rule);
    }
  }
  bool exists(Row row) const { return legal(space_, row) && from(row, 0); }
  // For a row that has one while `factor` is open: whether it still has.
  bool exists_with(Row row, std::size_t factor) const {
    return rules_of_[factor].empty() || (allowed(row, factor) && from(row, 0));
  }

 private:
  bool allowed(const Row& row, std::size_t factor) const {
    for (const RowRule* rule : rules_of_[factor]) {
      if (refuses(*rule, row)) return false;
    }
    return true;
  }
  bool from(Row& row, std::size_t factor) const {
    while (factor < row.size() && (row[factor] != kOpen || rules_of_[factor].empty())) ++factor;
    if (factor == row.size()) return true;
    bool found = false;
    for (int value = 0; value < space_.sizes[factor] && !found; ++value) {
      row[factor] = value;
      found = allowed(row, factor) && from(row, factor + 1);
    }
    row[factor] = kOpen;
    return found;
  }

  const RowSpace& space_;
  std::vector<std::vector<const RowRule*>> rules_of_;
};

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
      : space_(std::move(space)), completion_(space_), open_(space_.sizes), random_(seed) {
    for_each_triple(space_.sizes, [&](const Row& row, const TripleSet::Triple& t) {
      if (completion_.exists(row)) open_.set(row, t, true);
    });
    triples_ = open_.count();
    while (open_.count() > 0) add_row();
  }
  CoveringArray(const CoveringArray&) = delete;  // completion_ looks at space_
  CoveringArray& operator=(const CoveringArray&) = delete;
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
      if ((best != kOpen && gain <= most) || !completion_.exists_with(row, factor)) continue;
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
  Completion completion_;
  TripleSet open_;
  std::mt19937 random_;
  std::vector<Row> rows_;
  std::size_t triples_ = 0;
};

}  // namespace quatrain
