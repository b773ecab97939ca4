// SPDX-License-Identifier: Apache-2.0
// Sequences cannot deadlock: all ranks walk one list of operations and wait only for such as lie
// behind them, so of the ranks that wait the one that is furthest back waits for nobody.
#include "quatrain/comm/conformance.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "quatrain/base/check.h"
#include "quatrain/comm/conformance_case.h"
#include "quatrain/mesh/mesh.h"

namespace quatrain {
namespace {

constexpr std::size_t kMostInFlight = 8;

std::uint64_t mix(std::uint64_t seed, std::string_view what, std::uint64_t number) {
  return stable_hash(fmt::format("{} {} {}", seed, what, number));
}

// The whole is cut into `size` uneven pieces; then both ways must give the same bits.
void check_halves(Communicator& comm, Draws& draws) {
  ConformanceCase c = draw_case(draws, Operation::kAllReduce, comm.size());
  c.in_place = false;
  c.layout = 0;
  std::vector<ConformanceWork> whole = start_case(comm, c);
  whole[0].finish();
  c.operation = Operation::kReduceScatter;
  std::vector<ConformanceWork> piece = start_case(comm, c);
  piece[0].finish();
  at::Tensor gathered = at::empty(whole[0].out.sizes(), whole[0].out.options());
  comm.all_gather(gathered, piece[0].out, c.rows).wait();
  CHECK(gathered.equal(whole[0].out), "{}: reduce_scatter and all_gather give another result",
        whole[0].text);
}

using Groups = std::vector<std::unique_ptr<Communicator>>;

// Every second rank, beginning with `first`.
void add_alternate(Communicator& world, Groups& groups, int first, std::string_view name) {
  std::vector<int> ranks;
  for (int rank = first; rank < world.size(); rank += 2) ranks.push_back(rank);
  const bool member = world.rank() % 2 == first;
  groups.push_back(member ? world.group(ranks, name) : nullptr);
}

void add_mesh_groups(Communicator& world, Groups& groups) {
  const std::vector<AxisSet> sets = {
      Axis::kPp,
      Axis::kDpShard,
      Axis::kTp,
      AxisSet{Axis::kPp, Axis::kDpShard},
      AxisSet{Axis::kPp, Axis::kTp},
      AxisSet{Axis::kDpShard, Axis::kTp},
  };
  Mesh::Degrees degrees;
  degrees.fill(1);
  degrees[static_cast<std::size_t>(Axis::kPp)] = world.size() / 4;
  degrees[static_cast<std::size_t>(Axis::kDpShard)] = 2;
  degrees[static_cast<std::size_t>(Axis::kTp)] = 2;
  const Mesh mesh(degrees, world.rank());
  for (const AxisSet& axes : sets) {
    groups.push_back(world.group(mesh.group(axes), to_string(axes)));
  }
}

// One rank's walk through one sequence.
class Walk {
 public:
  Walk(std::uint64_t seed, int world_rank) : order_(seed, static_cast<std::uint64_t>(world_rank)) {}

  void start(Communicator& comm, const ConformanceCase& c) {
    for (ConformanceWork& work : start_case(comm, c)) in_flight_.push_back(std::move(work));
    while (in_flight_.size() > kMostInFlight || (!in_flight_.empty() && order_.below(3) == 0)) {
      finish_one();
    }
  }
  void finish() {
    while (!in_flight_.empty()) finish_one();
  }

 private:
  void finish_one() {
    const auto chosen = order_.below(static_cast<std::int64_t>(in_flight_.size()));
    ConformanceWork work = std::move(in_flight_[static_cast<std::size_t>(chosen)]);
    in_flight_.erase(in_flight_.begin() + chosen);
    work.finish();
  }

  Draws order_;
  std::vector<ConformanceWork> in_flight_;
};

}  // namespace

void check_collectives(Communicator& comm, std::uint64_t seed, int amount) {
  static constexpr Operation kAll[] = {
      Operation::kAllReduce, Operation::kAllGather, Operation::kReduceScatter, Operation::kAllToAll,
      Operation::kBroadcast, Operation::kSend,      Operation::kBarrier};
  for (int i = 0; i < amount; ++i) {
    Draws draws(mix(seed, comm.name(), static_cast<std::uint64_t>(comm.size())),
                static_cast<std::uint64_t>(i));
    for (Operation operation : kAll) {
      const ConformanceCase c = draw_case(draws, operation, comm.size());
      for (ConformanceWork& work : start_case(comm, c)) work.finish();
    }
  }
}

void check_reduction_halves(Communicator& comm, std::uint64_t seed, int amount) {
  for (int i = 0; i < amount; ++i) {
    Draws draws(mix(seed, "halves", 0), static_cast<std::uint64_t>(i));
    check_halves(comm, draws);
  }
}

Groups make_overlapping_groups(Communicator& world) {
  Groups groups;
  if (world.size() == 4 || world.size() == 8) add_mesh_groups(world, groups);
  add_alternate(world, groups, 0, "even");
  add_alternate(world, groups, 1, "odd");
  std::vector<int> reversed;
  for (int rank = world.size() - 1; rank >= 0; --rank) reversed.push_back(rank);
  groups.push_back(world.group(reversed, "reversed"));
  return groups;
}

void check_random_sequences(Communicator& world, Groups& groups, std::uint64_t seed, int count) {
  for (int sequence = 0; sequence < count; ++sequence) {
    const std::uint64_t key = mix(seed, "sequence", static_cast<std::uint64_t>(sequence));
    Walk walk(mix(key, "order", 0), world.rank());
    const std::int64_t operations = 2 + Draws(key, 0).below(14);
    for (std::int64_t i = 1; i <= operations; ++i) {
      Draws draws(key, static_cast<std::uint64_t>(i));
      const std::int64_t chosen = draws.below(static_cast<std::int64_t>(groups.size()) + 1);
      Communicator* comm =
          chosen == 0 ? &world : groups[static_cast<std::size_t>(chosen - 1)].get();
      if (comm == nullptr) continue;  // this rank is not in it
      const Operation operation = draw_operation(draws);
      ConformanceCase c = draw_case(draws, operation, comm->size());
      c.numbers += static_cast<std::uint64_t>(comm->ranks()[0]);  // sister groups bring others
      walk.start(*comm, c);
    }
    walk.finish();
  }
}

void check_conformance(Communicator& world, std::uint64_t seed, int amount) {
  check_collectives(world, seed, amount);
  check_reduction_halves(world, seed, amount);
  Groups groups = make_overlapping_groups(world);
  for (const std::unique_ptr<Communicator>& group : groups) {
    if (group) check_collectives(*group, seed, amount / 2);
  }
  check_random_sequences(world, groups, seed, amount);
}

}  // namespace quatrain
