// SPDX-License-Identifier: Apache-2.0
// The shape of a job and one rank's place in it. Values: a 16,384-rank job fits in one unit test.
// Two views of the same ranks inside a pipeline stage: attention and dense layers see
// dp_replicate x dp_shard x cp x tp, expert layers see edp_replicate x edp_shard x ep x etp
// (parallel folding, arXiv:2504.14960). pp is shared; the products of the two views are equal.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace quatrain {

enum class Axis : std::uint8_t {
  kPp,
  kDpReplicate,
  kDpShard,
  kCp,
  kTp,  // dense view
  kEdpReplicate,
  kEdpShard,
  kEp,
  kEtp  // expert view (with kPp)
};
inline constexpr int kNumAxes = 9;

std::string_view name(Axis axis);  // "pp", "dp_replicate", ..., "etp"

// Some axes at once: a collective over dp_shard x cp is one group, not two steps.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(Axis axis) : bits_(bit(axis)) {}  // NOLINT: an axis is a set of one
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis a : axes) bits_ |= bit(a);
  }
  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool intersects(AxisSet other) const { return (bits_ & other.bits_) != 0; }
  friend constexpr AxisSet operator|(AxisSet a, AxisSet b) {
    a.bits_ |= b.bits_;
    return a;
  }
  friend constexpr AxisSet operator-(AxisSet a, AxisSet b) {
    a.bits_ &= ~b.bits_;
    return a;
  }
  friend constexpr bool operator==(AxisSet, AxisSet) = default;
  friend constexpr auto operator<=>(AxisSet, AxisSet) = default;

 private:
  static constexpr std::uint32_t bit(Axis axis) { return 1U << static_cast<unsigned>(axis); }
  std::uint32_t bits_ = 0;
};

std::string to_string(AxisSet axes);  // "dp_shard x cp"

class Mesh {
 public:
  using Degrees = std::array<int, kNumAxes>;

  // One rank alone.
  Mesh();
  // `order`: the dense view's axes, slowest first; default pp, dp_replicate, dp_shard, cp, tp (tp
  // neighbours are rank neighbours). The expert view lays edp_replicate, edp_shard, ep, etp
  // (slowest first) over the ranks of each stage, with pp in the same place of the order. Expert
  // degrees that are all 1 in a dense job are filled with the dense view's: edp_replicate =
  // dp_replicate, edp_shard = the rest. Throws ConfigError naming every broken rule.
  Mesh(const Degrees& degrees, std::vector<Axis> order, int rank);
  Mesh(const Degrees& degrees, int rank);

  int world_size() const;
  int rank() const { return rank_; }
  int degree(AxisSet axes) const;  // product; `axes` lie in one view, here and below
  int coord(Axis axis) const;
  // Place of this rank along several axes of one view at once, slowest axis first.
  int coord(AxisSet axes) const;
  // Ranks that share every coordinate with this rank except along `axes`, in order of coord(axes).
  // Contains this rank.
  std::vector<int> group(AxisSet axes) const;
  Mesh with_rank(int rank) const;
  const Degrees& degrees() const { return degrees_; }
  const std::vector<Axis>& order() const { return order_; }
  // "pp2 dp_replicate1 dp_shard4 cp1 tp2 | edp4 ep2 etp1 @ rank 11"; edp is written as
  // edp_replicate2 edp_shard2 where it is replicated.
  std::string to_string() const;
  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  struct Digit;  // an axis of one view, its degree and this rank's coordinate
  std::array<Digit, 5> digits(bool expert) const;
  int rank_at(const std::array<Digit, 5>& digits, bool expert) const;
  int degree_of(Axis axis) const { return degrees_[static_cast<std::size_t>(axis)]; }
  int stride_of_pp() const;

  Degrees degrees_;
  std::vector<Axis> order_;
  int rank_;
};

}  // namespace quatrain
