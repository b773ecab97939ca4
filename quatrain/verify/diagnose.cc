// SPDX-License-Identifier: Apache-2.0
// The patterns, from the most telling to the least: copies that differ, a factor of the whole,
// shards that are elsewhere, shards that alone are wrong.
#include "quatrain/verify/diagnose.h"

#include <fmt/format.h>

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "quatrain/base/text.h"

namespace quatrain {
namespace {

constexpr double kExplained = 1e-3;  // of the error may stay unexplained by a pattern

double largest_of(const at::Tensor& x) {
  return x.numel() == 0 ? 0.0 : x.abs().max().item<double>();
}

// Sets of axes with more than one rank each, the smallest first: a collective may run over several
// at once.
std::vector<AxisSet> axis_sets(const Mesh& mesh, View view) {
  std::vector<Axis> axes;
  for (const Axis axis : axes_of(mesh, view)) {
    if (mesh.degree(axis) > 1) axes.push_back(axis);
  }
  std::vector<std::pair<int, AxisSet>> sets;
  for (unsigned bits = 1; bits < 1U << axes.size(); ++bits) {
    AxisSet set;
    int count = 0;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      if ((bits >> i & 1U) == 0) continue;
      set = set | axes[i];
      ++count;
    }
    sets.emplace_back(count, set);
  }
  std::stable_sort(sets.begin(), sets.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<AxisSet> result;
  for (const auto& [count, set] : sets) result.push_back(set);
  return result;
}

int size_of(AxisSet axes) {
  int count = 0;
  for (int a = 0; a < kNumAxes; ++a) count += axes.contains(static_cast<Axis>(a)) ? 1 : 0;
  return count;
}

// Keeps those of as few axes as the first.
std::vector<AxisSet> simplest(std::vector<AxisSet> axes) {
  if (axes.empty()) return axes;
  const int least = size_of(axes.front());
  std::erase_if(axes, [&](AxisSet set) { return size_of(set) > least; });
  return axes;
}

std::string either(const std::vector<AxisSet>& axes) {
  std::vector<std::string> names;
  for (const AxisSet set : axes) names.push_back(to_string(set));
  return join(names, " or ");
}

// Their degrees as factors: "tp or (dp_shard x cp)", each after `before`.
std::string degrees(const std::vector<AxisSet>& axes, std::string_view before) {
  std::vector<std::string> names;
  for (const AxisSet set : axes) {
    const std::string text = to_string(set);
    names.push_back(std::string(before) + (size_of(set) > 1 ? "(" + text + ")" : text));
  }
  return join(names, " or ");
}

std::string list(const std::vector<int>& numbers) {
  const std::vector<std::int64_t> wide(numbers.begin(), numbers.end());
  return join(wide, ", ");
}

std::string times(double factor) { return fmt::format("{:.6g} times", factor); }

// The pieces of one tensor beside what they should be, in float64.
class Patterns {
 public:
  Patterns(const Scattered& got, const at::Tensor& want, const Mesh& mesh, const Looked& looked)
      : mesh_(mesh),
        sets_(axis_sets(mesh, looked.view)),
        noun_(looked.noun),
        tolerance_(looked.tolerance) {
    want_ = want.to(at::kDouble);
    whole_ = assemble(got).to(at::kDouble);
    bound_ = tolerance_ * largest_of(want_);
    for (const Piece& piece : got.pieces) {
      pieces_.push_back({piece.rank, piece.box, piece.values.to(at::kDouble)});
    }
    const double error = largest_of(whole_.sub(want_));
    explained_ = std::max(bound_, kExplained * error);
  }

  Diagnosis copies_that_differ() const;
  Diagnosis factor_of_all() const;
  Diagnosis shards_elsewhere() const;
  Diagnosis shards_alone() const;

 private:
  // Pieces that belong together, by the coordinate along some axes.
  using Line = std::map<int, const Piece*>;

  bool near(double factor, double whole) const {
    return std::abs(factor / whole - 1.0) <= std::max(kExplained, tolerance_);
  }
  bool right(const Piece& piece) const {
    return largest_of(piece.values.sub(within(want_, piece.box))) <= bound_;
  }
  bool same(const at::Tensor& a, const at::Tensor& b) const {
    return a.sizes() == b.sizes() && largest_of(a.sub(b)) <= explained_;
  }
  std::vector<Line> lines(AxisSet axes) const;
  std::vector<std::vector<const Piece*>> copies(AxisSet axes) const;
  bool copies_add_up(AxisSet axes) const;
  double copies_along(AxisSet axes) const;
  std::vector<int> wrong_copies(AxisSet axes) const;
  bool cut_along(AxisSet axes) const;

  Mesh mesh_;
  std::vector<AxisSet> sets_;
  std::string noun_;
  at::Tensor want_, whole_;
  double tolerance_;
  double bound_;
  double explained_;
  std::vector<Piece> pieces_;
};

// Ranks that differ only along `axes`.
std::vector<Patterns::Line> Patterns::lines(AxisSet axes) const {
  std::map<int, Line> by_first_rank;
  for (const Piece& piece : pieces_) {
    const Mesh at = mesh_.with_rank(piece.rank);
    by_first_rank[at.group(axes).front()][at.coord(axes)] = &piece;
  }
  std::vector<Line> result;
  for (auto& [first, line] : by_first_rank) result.push_back(std::move(line));
  return result;
}

// Pieces along `axes` with the same box, where there are several.
std::vector<std::vector<const Piece*>> Patterns::copies(AxisSet axes) const {
  std::vector<std::vector<const Piece*>> result;
  for (const Line& line : lines(axes)) {
    std::vector<std::vector<const Piece*>> by_box;
    for (const auto& [coord, piece] : line) {
      const auto like = std::find_if(by_box.begin(), by_box.end(), [p = piece](const auto& group) {
        return group.front()->box == p->box;
      });
      if (like == by_box.end()) {
        by_box.push_back({piece});
      } else {
        like->push_back(piece);
      }
    }
    for (auto& group : by_box) {
      if (group.size() > 1) result.push_back(std::move(group));
    }
  }
  return result;
}

bool Patterns::copies_add_up(AxisSet axes) const {
  const auto groups = copies(axes);
  return !groups.empty() && std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
    at::Tensor sum = at::zeros_like(group.front()->values);
    for (const Piece* piece : group) sum.add_(piece->values);
    return same(sum, within(want_, group.front()->box));
  });
}

// How many ranks hold each piece: fewer than all along the axis where heads are repeated.
double Patterns::copies_along(AxisSet axes) const {
  const auto groups = copies(axes);
  return groups.empty() ? 1.0 : static_cast<double>(groups.front().size());
}

// Coordinates along `axes` whose copies are wrong while others hold what is right.
std::vector<int> Patterns::wrong_copies(AxisSet axes) const {
  std::set<int> wrong;
  bool some_right = false;
  for (const auto& group : copies(axes)) {
    for (const Piece* piece : group) {
      if (right(*piece)) {
        some_right = true;
      } else {
        wrong.insert(mesh_.with_rank(piece->rank).coord(axes));
      }
    }
  }
  if (!some_right) return {};
  return {wrong.begin(), wrong.end()};
}

Diagnosis Patterns::copies_that_differ() const {
  std::vector<AxisSet> differ;
  std::vector<AxisSet> add_up;
  for (const AxisSet axes : sets_) {
    const auto groups = copies(axes);
    const bool equal = std::all_of(groups.begin(), groups.end(), [&](const auto& group) {
      return std::all_of(group.begin(), group.end(), [&](const Piece* piece) {
        return largest_of(piece->values.sub(group.front()->values)) <= bound_;
      });
    });
    if (equal) continue;
    differ.push_back(axes);
    if (copies_add_up(axes)) add_up.push_back(axes);
  }
  if (differ.empty()) return {};
  if (!add_up.empty()) {
    add_up = simplest(add_up);
    return {add_up,
            fmt::format("the copies of the {} differ over {} and add up to the right one: a sum "
                        "over {} is missing",
                        noun_, either(add_up), either(add_up))};
  }
  differ = simplest(differ);
  const std::vector<int> wrong = wrong_copies(differ.front());
  if (differ.size() == 1 && !wrong.empty()) {
    return {differ, fmt::format("only the copy at {} {} is wrong", either(differ), list(wrong))};
  }
  return {differ, fmt::format("the copies of the {} differ over {}", noun_, either(differ))};
}

Diagnosis Patterns::factor_of_all() const {
  const std::optional<double> factor = common_factor(whole_, want_, tolerance_);
  if (!factor) return {};
  if (std::abs(*factor) <= kExplained) return {{}, fmt::format("the {} is zero", noun_), factor};
  const auto with_degree = [&](double wanted) {
    std::vector<AxisSet> fit;
    for (const AxisSet axes : sets_) {
      if (near(wanted, mesh_.degree(axes))) fit.push_back(axes);
    }
    return simplest(fit);
  };
  if (const auto axes = with_degree(1.0 / *factor); !axes.empty()) {
    return {axes,
            fmt::format("{} of the {}: a sum over {} is missing, or taken as a mean",
                        degrees(axes, "1/"), noun_, either(axes)),
            factor};
  }
  if (const auto axes = with_degree(*factor); !axes.empty()) {
    return {axes,
            fmt::format("{} times the {}: summed twice over {}", degrees(axes, ""), noun_,
                        either(axes)),
            factor};
  }
  for (const AxisSet axes : sets_) {
    if (*factor <= 1.0 || !near(*factor, copies_along(axes))) continue;
    return {{axes},
            fmt::format("{} the {}: summed twice over its copies on {}", times(*factor), noun_,
                        to_string(axes)),
            factor};
  }
  return {{}, fmt::format("{} the {}", times(*factor), noun_), factor};
}

// Whether pieces along `axes` are different boxes, with nothing held twice on a line.
bool Patterns::cut_along(AxisSet axes) const {
  if (!copies(axes).empty()) return false;
  const auto all = lines(axes);
  return std::any_of(all.begin(), all.end(), [](const Line& line) { return line.size() > 1; });
}

// Wrong shards that hold what belongs to others of the same line.
Diagnosis Patterns::shards_elsewhere() const {
  for (const AxisSet axes : sets_) {
    if (!cut_along(axes)) continue;
    std::map<int, int> holds;  // coordinate -> whose
    bool all = true;
    for (const Line& line : lines(axes)) {
      for (const auto& [at, piece] : line) {
        if (right(*piece)) continue;
        const auto owner =
            std::find_if(line.begin(), line.end(), [&, p = piece](const auto& other) {
              return other.second != p && same(p->values, within(want_, other.second->box));
            });
        all = all && owner != line.end();
        if (owner != line.end()) holds[at] = owner->first;
      }
    }
    if (!all || holds.empty()) continue;
    const auto& [at, whose] = *holds.begin();
    const auto back = holds.find(whose);
    if (holds.size() == 2 && back != holds.end() && back->second == at) {
      return {{axes},
              fmt::format("shards {} and {} of {} are swapped", at, whose, to_string(axes))};
    }
    std::vector<std::string> words;
    for (const auto& [coord, owner] : holds) {
      words.push_back(
          fmt::format("shard {} of {} holds what is shard {}'s", coord, to_string(axes), owner));
    }
    return {{axes}, join(words, "; ")};
  }
  return {};
}

// The error vanishes in half of an axis's shards or more. In fewer it may by chance: a shard of few
// rows of a table holds what a wrong forward does not reach.
Diagnosis Patterns::shards_alone() const {
  for (const AxisSet axes : sets_) {
    if (!cut_along(axes)) continue;
    std::set<int> seen;
    std::set<int> wrong;
    std::vector<std::optional<double>> factors;
    for (const Piece& piece : pieces_) {
      const int at = mesh_.with_rank(piece.rank).coord(axes);
      seen.insert(at);
      if (right(piece)) continue;
      wrong.insert(at);
      factors.push_back(common_factor(piece.values, within(want_, piece.box), tolerance_));
    }
    if (wrong.empty() || 2 * wrong.size() > seen.size()) continue;
    const std::vector<int> coords(wrong.begin(), wrong.end());
    std::string hint = fmt::format("only shard {} of {} differs", list(coords), to_string(axes));
    if (factors.size() == 1 && factors[0]) {
      hint += fmt::format(": {} the {}", times(*factors[0]), noun_);
    }
    return {{axes}, hint};
  }
  return {};
}

}  // namespace

std::optional<double> common_factor(const at::Tensor& got, const at::Tensor& want,
                                    double tolerance) {
  const at::Tensor a = got.to(at::kDouble);
  const at::Tensor b = want.to(at::kDouble);
  const double norm = b.mul(b).sum().item<double>();
  if (a.sizes() != b.sizes() || norm == 0.0) return std::nullopt;
  const double factor = a.mul(b).sum().item<double>() / norm;
  const double unexplained = largest_of(a.sub(b.mul(factor)));
  const double error = largest_of(a.sub(b));
  const double rounding = std::min(tolerance * largest_of(b), 0.25 * error);
  if (!(unexplained <= std::max(kExplained * error, rounding))) return std::nullopt;
  return factor;
}

std::vector<Axis> axes_of(const Mesh& mesh, View view) {
  if (view == View::kDense) return mesh.order();
  return {Axis::kPp, Axis::kEdpReplicate, Axis::kEdpShard, Axis::kEp, Axis::kEtp};
}

Diagnosis diagnose(const Scattered& got, const at::Tensor& want, const Mesh& mesh,
                   const Looked& looked) {
  const Patterns patterns(got, want, mesh, looked);
  for (const auto pattern : {&Patterns::copies_that_differ, &Patterns::factor_of_all,
                             &Patterns::shards_elsewhere, &Patterns::shards_alone}) {
    Diagnosis found = (patterns.*pattern)();
    if (!found.hint.empty()) return found;
  }
  return {{}, "no pattern"};
}

}  // namespace quatrain
