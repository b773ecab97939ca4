// SPDX-License-Identifier: Apache-2.0
// Ranks as mixed-radix numbers: of the dense view over all axes, of the expert view over the ranks
// of one stage.
#include "quatrain/mesh/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/base/error.h"

namespace quatrain {
namespace {

constexpr std::array<Axis, kNumAxes> kAxes = {
    Axis::kPp,           Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp,
    Axis::kEdpReplicate, Axis::kEdpShard,    Axis::kEp,      Axis::kEtp};
constexpr std::array<Axis, 5> kDense = {Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kCp,
                                        Axis::kTp};
constexpr std::array<Axis, 4> kExpert = {Axis::kEdpReplicate, Axis::kEdpShard, Axis::kEp,
                                         Axis::kEtp};
constexpr AxisSet kDenseOnly{Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp};
constexpr AxisSet kExpertOnly{Axis::kEdpReplicate, Axis::kEdpShard, Axis::kEp, Axis::kEtp};

std::size_t index(Axis axis) { return static_cast<std::size_t>(axis); }

bool is_expert(AxisSet axes) {
  CHECK(!axes.intersects(kDenseOnly) || !axes.intersects(kExpertOnly),
        "{} mixes the dense and the expert view", to_string(axes));
  return axes.intersects(kExpertOnly);
}

// Saturates, so that absurd degrees end in a message and not in an overflow.
std::int64_t product(const Mesh::Degrees& degrees, AxisSet axes) {
  std::int64_t result = 1;
  for (Axis axis : kAxes) {
    if (axes.contains(axis)) {
      result = std::min<std::int64_t>(result * std::max(1, degrees[index(axis)]),
                                      std::numeric_limits<int>::max());
    }
  }
  return result;
}

Mesh::Degrees with_expert_view(Mesh::Degrees degrees) {
  const bool dense_job =
      std::all_of(kExpert.begin(), kExpert.end(), [&](Axis a) { return degrees[index(a)] == 1; });
  if (!dense_job) return degrees;
  degrees[index(Axis::kEdpReplicate)] = degrees[index(Axis::kDpReplicate)];
  degrees[index(Axis::kEdpShard)] =
      static_cast<int>(product(degrees, {Axis::kDpShard, Axis::kCp, Axis::kTp}));
  return degrees;
}

Problems broken_rules(const Mesh::Degrees& degrees, const std::vector<Axis>& order, int rank) {
  Problems problems;
  for (Axis axis : kAxes) {
    const int degree = degrees[index(axis)];
    if (degree >= 1) continue;
    problems.push_back({fmt::format("parallel.{}", name(axis)),
                        fmt::format("{} = {} is not a degree", name(axis), degree),
                        "a degree is 1 or more"});
  }
  if (!std::is_permutation(order.begin(), order.end(), kDense.begin(), kDense.end())) {
    std::string given;
    for (Axis axis : order) given += fmt::format("{}{}", given.empty() ? "" : " ", name(axis));
    problems.push_back({"parallel.order", fmt::format("the order is \"{}\"", given),
                        "it names pp dp_replicate dp_shard cp tp, each once, slowest first"});
  }
  const std::int64_t dense = product(degrees, kDenseOnly);
  const std::int64_t expert = product(degrees, kExpertOnly);
  if (dense != expert) {
    problems.push_back(
        {"parallel",
         fmt::format("edp_replicate x edp_shard x ep x etp = {} but dp_replicate x dp_shard x cp x "
                     "tp = {}",
                     expert, dense),
         "both views share the ranks of a stage, so the products are equal"});
  }
  const std::int64_t world = product(degrees, kDenseOnly | Axis::kPp);
  if (world >= std::numeric_limits<int>::max()) {
    problems.push_back({"parallel", "the degrees multiply to more than 2^31 ranks", ""});
  }
  if (rank < 0 || rank >= world) {
    problems.push_back({"rank", fmt::format("rank {} is not in a job of {} ranks", rank, world),
                        fmt::format("ranks are 0 to {}", world - 1)});
  }
  return problems;
}

}  // namespace

struct Mesh::Digit {
  Axis axis;
  int degree;
  int coord;
};

std::string_view name(Axis axis) {
  switch (axis) {
    case Axis::kPp:
      return "pp";
    case Axis::kDpReplicate:
      return "dp_replicate";
    case Axis::kDpShard:
      return "dp_shard";
    case Axis::kCp:
      return "cp";
    case Axis::kTp:
      return "tp";
    case Axis::kEdpReplicate:
      return "edp_replicate";
    case Axis::kEdpShard:
      return "edp_shard";
    case Axis::kEp:
      return "ep";
    case Axis::kEtp:
      return "etp";
  }
  return "?";
}

std::string to_string(AxisSet axes) {
  std::string text;
  for (Axis axis : kAxes) {
    if (axes.contains(axis)) text += fmt::format("{}{}", text.empty() ? "" : " x ", name(axis));
  }
  return text.empty() ? "no axis" : text;
}

Mesh::Mesh() : Mesh({1, 1, 1, 1, 1, 1, 1, 1, 1}, 0) {}

Mesh::Mesh(const Degrees& degrees, int rank)
    : Mesh(degrees, {kDense.begin(), kDense.end()}, rank) {}

Mesh::Mesh(const Degrees& degrees, std::vector<Axis> order, int rank)
    : degrees_(with_expert_view(degrees)), order_(std::move(order)), rank_(rank) {
  throw_if_any(broken_rules(degrees_, order_, rank_));
}

int Mesh::world_size() const { return static_cast<int>(product(degrees_, kDenseOnly | Axis::kPp)); }

int Mesh::degree(AxisSet axes) const {
  is_expert(axes);
  return static_cast<int>(product(degrees_, axes));
}

int Mesh::stride_of_pp() const {
  int stride = 1;
  for (auto axis = order_.rbegin(); *axis != Axis::kPp; ++axis) stride *= degree_of(*axis);
  return stride;
}

// A rank is (slower, pp, faster); the expert view's other digits are those of the rank's place in
// its stage, (slower, faster).
std::array<Mesh::Digit, 5> Mesh::digits(bool expert) const {
  std::array<Digit, 5> result;
  const int stride = stride_of_pp();
  const int pp = degree_of(Axis::kPp);
  int rest = expert ? rank_ / (stride * pp) * stride + rank_ % stride : rank_;
  std::size_t e = kExpert.size();
  for (std::size_t i = order_.size(); i-- > 0;) {
    const bool is_pp = order_[i] == Axis::kPp;
    const Axis axis = expert && !is_pp ? kExpert[--e] : order_[i];
    const int degree = degree_of(axis);
    if (expert && is_pp) {
      result[i] = {axis, degree, rank_ / stride % pp};
    } else {
      result[i] = {axis, degree, rest % degree};
      rest /= degree;
    }
  }
  return result;
}

int Mesh::rank_at(const std::array<Digit, 5>& digits, bool expert) const {
  int place = 0;
  int stage = 0;
  for (const Digit& digit : digits) {
    if (expert && digit.axis == Axis::kPp) {
      stage = digit.coord;
    } else {
      place = place * digit.degree + digit.coord;
    }
  }
  if (!expert) return place;
  const int stride = stride_of_pp();
  return (place / stride * degree_of(Axis::kPp) + stage) * stride + place % stride;
}

int Mesh::coord(Axis axis) const { return coord(AxisSet(axis)); }

int Mesh::coord(AxisSet axes) const {
  int result = 0;
  for (const Digit& digit : digits(is_expert(axes))) {
    if (axes.contains(digit.axis)) result = result * digit.degree + digit.coord;
  }
  return result;
}

std::vector<int> Mesh::group(AxisSet axes) const {
  const bool expert = is_expert(axes);
  std::array<Digit, 5> place = digits(expert);
  const int size = degree(axes);
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(size));
  for (int member = 0; member < size; ++member) {
    int rest = member;
    for (auto digit = place.rbegin(); digit != place.rend(); ++digit) {
      if (!axes.contains(digit->axis)) continue;
      digit->coord = rest % digit->degree;
      rest /= digit->degree;
    }
    ranks.push_back(rank_at(place, expert));
  }
  return ranks;
}

Mesh Mesh::with_rank(int rank) const { return Mesh(degrees_, order_, rank); }

std::string Mesh::to_string() const {
  std::string text;
  for (Axis axis : order_) text += fmt::format("{}{} ", name(axis), degree_of(axis));
  text += '|';
  if (degree_of(Axis::kEdpReplicate) == 1) {
    text += fmt::format(" edp{}", degree_of(Axis::kEdpShard));
  } else {
    text += fmt::format(" edp_replicate{} edp_shard{}", degree_of(Axis::kEdpReplicate),
                        degree_of(Axis::kEdpShard));
  }
  return text +
         fmt::format(" ep{} etp{} @ rank {}", degree_of(Axis::kEp), degree_of(Axis::kEtp), rank_);
}

}  // namespace quatrain
