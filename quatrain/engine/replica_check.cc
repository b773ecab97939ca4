// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/replica_check.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "quatrain/base/error.h"
#include "quatrain/base/text.h"
#include "quatrain/kernels/hash.h"

namespace quatrain {
namespace {

constexpr std::size_t kShown = 5;

// Never 0: that is "nothing".
std::int64_t place_of(const ShardPart& part) {
  std::uint64_t hash = 1;
  for (const std::int64_t begin : part.param->begin) {
    hash = hash * 1000003 + static_cast<std::uint64_t>(begin);
  }
  for (const std::int64_t size : part.param->local_shape) {
    hash = hash * 1000003 + static_cast<std::uint64_t>(size);
  }
  hash = hash * 1000003 + static_cast<std::uint64_t>(part.first);
  hash = hash * 1000003 + static_cast<std::uint64_t>(part.numel);
  return static_cast<std::int64_t>(hash | 1);
}

// What this rank holds of every parameter, and of its optimizer state; nothing of those that are on
// other stages.
class Held {
 public:
  Held(ZeroUnits& units, Optimizer& optimizer) {
    for (const ParameterInfo& info : parameters(units.model().spec())) {
      place_.emplace(info.name, names_.size());
      names_.push_back(info.name);
      names_.push_back("the optimizer state of " + info.name);
    }
    of_tensors_.resize(names_.size());
    for (const UnitShard& shard : units.shards()) {
      ParamUnit& unit = *shard.unit;
      const bool whole = unit.flat_value().defined();
      const at::Tensor& values = whole ? unit.flat_value() : shard.value;
      for (const ShardPart& part : whole ? parts(unit, 0, unit.numel()) : parts(shard)) {
        const at::Tensor bits = values.narrow(0, part.value_begin, part.numel);
        of(part, 0) = {place_of(part), static_cast<std::int64_t>(kernels::hash_bits(bits))};
      }
      for (const ShardPart& part : parts(shard)) {
        if (part.param->info.trainable) of(part, 1) = state_of(part, optimizer);
      }
    }
  }
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<HeldPart>& of_tensors() const { return of_tensors_; }

 private:
  HeldPart& of(const ShardPart& part, std::size_t behind) {
    return of_tensors_[place_.at(part.param->info.name) + behind];
  }
  static HeldPart state_of(const ShardPart& part, Optimizer& optimizer) {
    std::uint64_t hash = 0;
    for (const auto& [name, state] : optimizer.state(*part.param)) {
      hash = kernels::hash_bits(state, hash);
    }
    return {place_of(part), static_cast<std::int64_t>(hash)};
  }

  std::vector<std::string> names_;
  std::map<std::string, std::size_t> place_;  // in names_
  std::vector<HeldPart> of_tensors_;
};

std::vector<HeldPart> gather(const std::vector<HeldPart>& own, Communicator& world) {
  const auto count = static_cast<std::int64_t>(own.size());
  at::Tensor mine = at::empty({count, 2}, at::TensorOptions(at::kLong));
  auto numbers = mine.accessor<std::int64_t, 2>();
  for (std::int64_t i = 0; i < count; ++i) {
    numbers[i][0] = own[static_cast<std::size_t>(i)].elements;
    numbers[i][1] = own[static_cast<std::size_t>(i)].bits;
  }
  at::Tensor all = at::empty({count * world.size(), 2}, mine.options());
  all_gather(world, all, mine).wait();
  const auto gathered = all.accessor<std::int64_t, 2>();
  std::vector<HeldPart> result;
  for (std::int64_t i = 0; i < all.size(0); ++i) {
    result.push_back({gathered[i][0], gathered[i][1]});
  }
  return result;
}

// An axis along which one goes from `rank` to `other`, or all that lie between.
AxisSet axes_between(const Mesh& mesh, int rank, int other) {
  AxisSet axes;
  for (const Axis axis : {Axis::kPp, Axis::kDpReplicate, Axis::kDpShard, Axis::kCp, Axis::kTp}) {
    if (mesh.with_rank(rank).coord(axis) != mesh.with_rank(other).coord(axis)) axes = axes | axis;
  }
  return axes;
}

}  // namespace

std::vector<Drift> find_drifts(std::span<const HeldPart> held, std::size_t tensors) {
  std::vector<Drift> drifts;
  const int ranks = static_cast<int>(held.size() / std::max<std::size_t>(tensors, 1));
  for (std::size_t tensor = 0; tensor < tensors; ++tensor) {
    std::map<std::int64_t, std::map<std::int64_t, std::vector<int>>> holders;  // by place and bits
    for (int rank = 0; rank < ranks; ++rank) {
      const HeldPart& part = held[static_cast<std::size_t>(rank) * tensors + tensor];
      if (part.elements != 0) holders[part.elements][part.bits].push_back(rank);
    }
    for (const auto& [place, by_bits] : holders) {
      if (by_bits.size() < 2) continue;
      const auto most =
          std::max_element(by_bits.begin(), by_bits.end(), [](const auto& a, const auto& b) {
            if (a.second.size() != b.second.size()) return a.second.size() < b.second.size();
            return a.second.front() > b.second.front();
          });
      for (auto it = by_bits.begin(); it != by_bits.end(); ++it) {
        if (it != most) drifts.push_back({tensor, it->second, most->second.front()});
      }
    }
  }
  return drifts;
}

void check_replicas(ZeroUnits& units, Optimizer& optimizer, const Mesh& mesh, Communicator& world) {
  Held own(units, optimizer);
  const std::vector<HeldPart> all = gather(own.of_tensors(), world);
  const std::vector<Drift> drifts = find_drifts(all, own.names().size());
  if (drifts.empty()) return;
  std::string text = fmt::format("{} tensors drifted apart between ranks", drifts.size());
  for (std::size_t i = 0; i < std::min(drifts.size(), kShown); ++i) {
    const Drift& drift = drifts[i];
    const std::vector<std::int64_t> ranks(drift.ranks.begin(), drift.ranks.end());
    text += fmt::format("; {}: rank {} holds other bits than rank {}, along {}",
                        own.names()[drift.tensor], join(ranks, ", "), drift.against,
                        to_string(axes_between(mesh, drift.ranks.front(), drift.against)));
  }
  throw BugError(text);
}

}  // namespace quatrain
