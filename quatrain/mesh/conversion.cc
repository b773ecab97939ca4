// SPDX-License-Identifier: Apache-2.0
// Layout changes as collectives. A layout is kept as one nest of cuts a dim (outermost first) and
// a list of partial axes; each step moves one set of axes towards the wanted layout, the cheapest
// kind of step first: slices before anything that sends, since they make the rest smaller, and
// gathers last.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/mesh/cut.h"
#include "quatrain/mesh/placement.h"
#include "quatrain/mesh/wire.h"

namespace quatrain {
namespace {

struct Cut {
  AxisSet axes;
  Shard shard;
  friend bool operator==(const Cut&, const Cut&) = default;
};
using Nest = std::vector<Cut>;

struct Pending {
  AxisSet axes;
  ReduceOp op;
  friend bool operator==(const Pending&, const Pending&) = default;
};

struct State {
  std::vector<Nest> nests;  // one a dim
  std::vector<Pending> partial;

  AxisSet axes() const {
    AxisSet all;
    for (const Nest& nest : nests) {
      for (const Cut& c : nest) all = all | c.axes;
    }
    for (const Pending& p : partial) all = all | p.axes;
    return all;
  }
};

// Axes of degree 1 cut nothing and sum nothing: they are left out, so that layouts which differ
// only there are equal.
AxisSet cutting(AxisSet axes, const Mesh& mesh) {
  AxisSet result;
  for (int a = 0; a < kNumAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    if (axes.contains(axis) && mesh.degree(axis) > 1) result = result | axis;
  }
  return result;
}

State read(const ShardSpec& spec, std::size_t dims, const Mesh& mesh) {
  State state;
  state.nests.resize(dims);
  AxisSet seen;
  for (const ShardSpec::On& on : spec.on) {
    CHECK(!on.axes.intersects(seen), "{} places an axis twice", to_string(spec));
    seen = seen | on.axes;
    const AxisSet axes = cutting(on.axes, mesh);
    if (axes.empty()) continue;
    if (const auto* shard = std::get_if<Shard>(&on.placement)) {
      CHECK(shard->dim >= 0 && static_cast<std::size_t>(shard->dim) < dims,
            "{} of a tensor with {} dims", to_string(spec), dims);
      state.nests[static_cast<std::size_t>(shard->dim)].push_back({axes, *shard});
    } else if (const auto* partial = std::get_if<Partial>(&on.placement)) {
      state.partial.push_back({axes, partial->op});
    }
  }
  return state;
}

bool is_prefix(const Nest& nest, const Nest& of) {
  return nest.size() <= of.size() && std::equal(nest.begin(), nest.end(), of.begin());
}

class Converter {
 public:
  Converter(const ShardSpec& from, const ShardSpec& to, std::span<const std::int64_t> global,
            Bytes element_size, const Mesh& mesh)
      : from_(from),
        to_(to),
        global_(global),
        element_size_(element_size),
        mesh_(mesh),
        now_(read(from, global.size(), mesh)),
        goal_(read(to, global.size(), mesh)) {
    split_partials();
  }

  std::vector<Collective> run() {
    while (slice() || reduce_scatter() || all_to_all() || all_reduce() || all_gather()) {
    }
    const bool arrived =
        now_.nests == goal_.nests && now_.partial.size() == goal_.partial.size() &&
        std::is_permutation(now_.partial.begin(), now_.partial.end(), goal_.partial.begin());
    CHECK(arrived, "no collectives turn \"{}\" into \"{}\"", to_string(from_), to_string(to_));
    return std::move(list_);
  }

 private:
  // A sum over several axes is a sum over some and then over the others: where the goal treats a
  // part of the axes in its own way, that part goes alone.
  void split_partials() {
    std::vector<AxisSet> wanted;
    for (const Pending& p : goal_.partial) wanted.push_back(p.axes);
    for (const Nest& nest : goal_.nests) {
      for (const Cut& c : nest) wanted.push_back(c.axes);
    }
    for (AxisSet part : wanted) {
      for (std::size_t i = 0; i < now_.partial.size(); ++i) {
        const Pending whole = now_.partial[i];
        const bool inside = (part - whole.axes).empty() && part != whole.axes;
        if (!inside) continue;
        now_.partial[i].axes = part;
        now_.partial.push_back({whole.axes - part, whole.op});
        break;
      }
    }
  }

  // The next cut that dim `d` wants, when all cuts so far are the wanted ones.
  const Cut* next_cut(std::size_t d) const {
    const Nest& goal = goal_.nests[d];
    const Nest& nest = now_.nests[d];
    return nest.size() < goal.size() && is_prefix(nest, goal) ? &goal[nest.size()] : nullptr;
  }

  // Elements along dim `d` on the fullest rank.
  std::int64_t length(std::size_t d) const { return length(d, now_.nests[d].size()); }
  std::int64_t length(std::size_t d, std::size_t cuts) const {
    std::int64_t size = global_[d];
    for (std::size_t i = 0; i < cuts; ++i) size = longest(size, now_.nests[d][i]);
    return size;
  }
  std::int64_t held(std::int64_t size, const Cut& c, int coord) const {
    std::int64_t sum = 0;
    for (const Range& range : cut(size, c.shard, mesh_.degree(c.axes), coord)) sum += range.size();
    return sum;
  }
  std::int64_t longest(std::int64_t size, const Cut& c) const {
    std::int64_t most = 0;
    for (int i = 0; i < mesh_.degree(c.axes); ++i) most = std::max(most, held(size, c, i));
    return most;
  }
  std::int64_t numel() const {
    std::int64_t result = 1;
    for (std::size_t d = 0; d < global_.size(); ++d) result *= length(d);
    return result;
  }
  void add(CollectiveKind kind, AxisSet axes, int dim, std::int64_t elements, int split_dim = -1,
           ReduceOp op = ReduceOp::kSum) {
    list_.push_back({kind, axes, dim, elements * element_size_, split_dim, op});
  }

  bool slice() {
    for (std::size_t d = 0; d < global_.size(); ++d) {
      const Cut* next = next_cut(d);
      if (next == nullptr || next->axes.intersects(now_.axes())) continue;
      now_.nests[d].push_back(*next);
      add(CollectiveKind::kSlice, next->axes, static_cast<int>(d), 0);
      return true;
    }
    return false;
  }

  bool reduce_scatter() {
    for (std::size_t d = 0; d < global_.size(); ++d) {
      const Cut* next = next_cut(d);
      if (next == nullptr || next->shard.repeat != 1) continue;
      const auto partial = find_partial(next->axes);
      if (partial == now_.partial.end()) continue;
      const ReduceOp op = partial->op;
      now_.partial.erase(partial);
      now_.nests[d].push_back(*next);
      add(CollectiveKind::kReduceScatter, next->axes, static_cast<int>(d),
          gather_wire(mesh_.degree(next->axes), numel()), -1, op);
      return true;
    }
    return false;
  }

  bool all_to_all() {
    for (std::size_t b = 0; b < global_.size(); ++b) {
      const Cut* next = next_cut(b);
      if (next == nullptr || next->shard.repeat != 1) continue;
      for (std::size_t a = 0; a < global_.size(); ++a) {
        const Nest& nest = now_.nests[a];
        const bool moves = a != b && !nest.empty() && nest.back().axes == next->axes &&
                           nest.back().shard.repeat == 1;
        if (!moves) continue;
        add(CollectiveKind::kAllToAll, next->axes, static_cast<int>(a), leaving(a, b, *next),
            static_cast<int>(b));
        now_.nests[a].pop_back();
        now_.nests[b].push_back(*next);
        return true;
      }
    }
    return false;
  }

  // Elements that the fullest rank hands to its peers when dim `a` is gathered and `b` cut.
  std::int64_t leaving(std::size_t a, std::size_t b, const Cut& next) const {
    const Cut& last = now_.nests[a].back();
    const std::int64_t whole_a = length(a, now_.nests[a].size() - 1);
    const std::int64_t whole_b = length(b);
    std::int64_t rest = 1;
    for (std::size_t e = 0; e < global_.size(); ++e) rest *= e == a || e == b ? 1 : length(e);
    std::int64_t most = 0;
    for (int i = 0; i < mesh_.degree(next.axes); ++i) {
      most = std::max(most, held(whole_a, last, i) * (whole_b - held(whole_b, next, i)));
    }
    return most * rest;
  }

  bool all_reduce() {
    for (auto partial = now_.partial.begin(); partial != now_.partial.end(); ++partial) {
      if (stays_or_scatters(*partial)) continue;
      const Pending done = *partial;
      const int n = mesh_.degree(done.axes);
      add(CollectiveKind::kAllReduce, done.axes, -1, all_reduce_wire(n, numel()), -1, done.op);
      now_.partial.erase(partial);
      return true;
    }
    return false;
  }

  bool stays_or_scatters(const Pending& partial) const {
    const auto& keep = goal_.partial;
    if (std::find(keep.begin(), keep.end(), partial) != keep.end()) return true;
    for (const Nest& nest : goal_.nests) {
      for (const Cut& c : nest) {
        if (c.axes == partial.axes && c.shard.repeat == 1) return true;
      }
    }
    return false;
  }

  bool all_gather() {
    for (std::size_t d = 0; d < global_.size(); ++d) {
      if (is_prefix(now_.nests[d], goal_.nests[d])) continue;
      const AxisSet axes = now_.nests[d].back().axes;
      add(CollectiveKind::kAllGather, axes, static_cast<int>(d),
          gather_wire(mesh_.degree(axes), numel()));
      now_.nests[d].pop_back();
      return true;
    }
    return false;
  }

  std::vector<Pending>::iterator find_partial(AxisSet axes) {
    return std::find_if(now_.partial.begin(), now_.partial.end(),
                        [&](const Pending& p) { return p.axes == axes; });
  }

  const ShardSpec& from_;
  const ShardSpec& to_;
  std::span<const std::int64_t> global_;
  Bytes element_size_;
  const Mesh& mesh_;
  State now_;
  State goal_;
  std::vector<Collective> list_;
};

}  // namespace

std::string_view name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kSend:
      return "send";
    case CollectiveKind::kSlice:
      return "slice";
  }
  return "?";
}

std::string to_string(const Collective& collective) {
  std::string text(name(collective.kind));
  if (collective.tensor_dim >= 0) text += fmt::format(" dim {}", collective.tensor_dim);
  if (collective.split_dim >= 0) text += fmt::format(" to {}", collective.split_dim);
  return text +
         fmt::format(" on {}: {} B", to_string(collective.axes), collective.bytes_sent.value);
}

std::vector<Collective> conversion(const ShardSpec& from, const ShardSpec& to,
                                   std::span<const std::int64_t> global_shape, Bytes element_size,
                                   const Mesh& mesh) {
  return Converter(from, to, global_shape, element_size, mesh).run();
}

}  // namespace quatrain
