// SPDX-License-Identifier: Apache-2.0
// The storage of a stage's units under data parallelism, and the collectives that keep it equal to
// one rank's (Rajbhandari et al., arXiv:1910.02054): what a rank holds of values and gradients, and
// what UNSHARD, RESHARD and REDUCE_GRAD do to it.
//
//   ZeRO stage   values between uses   gradients between uses   a reduction is
//   0            whole                 whole                    all_reduce
//   1            whole                 whole                    reduce_scatter into its own rows
//   2            whole                 this rank's shard        reduce_scatter, then freed
//   3            this rank's shard     this rank's shard        reduce_scatter, then freed
//
// A group of one rank has nothing to gather or reduce: its shard is the whole. Units of routed
// experts have the groups of the expert view; where one view has shards and the other has none, a
// whole unit's gradients are reduced once, at the end of the step. Under tensor parallelism units
// hold this rank's pieces of parameters, and a reduction begins with the sum over copies
// (engine/replica_sums.h). Under hybrid sharding (dp_replicate x dp_shard) the shards' gradients
// are summed over the replicas once, at the end of the step. Units are numbered on their rank, over
// all of its stages.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quatrain/engine/rank_groups.h"
#include "quatrain/engine/replica_sums.h"
#include "quatrain/engine/trace.h"
#include "quatrain/model/model.h"
#include "quatrain/nn/unit_shard.h"
#include "quatrain/schedule/zero.h"

namespace quatrain {

class ZeroUnits {
 public:
  // `model` and `groups` outlive it.
  ZeroUnits(Model& model, RankGroups& groups, int zero_stage);
  ~ZeroUnits();
  ZeroUnits(const ZeroUnits&) = delete;
  ZeroUnits& operator=(const ZeroUnits&) = delete;

  // Allocates this rank's part, with zeroed gradients when asked for. Values are not set.
  void allocate(bool with_grads);
  void initialise(std::uint64_t seed);
  // What this rank owns and its optimizer updates, a shard a unit; valid from allocate() on.
  std::span<const UnitShard> shards() const { return shards_; }
  // The ranks that own one shard each of a unit; this rank alone where it owns it whole.
  Communicator& owners(const ParamUnit& unit);
  // The ranks that hold between them every element of the dense units, or of the experts'.
  Communicator& holders();
  Communicator& expert_holders();
  // The ranks that hold every expert of their layers between them, each in whole shards.
  bool has_experts() const { return groups_.experts.has_value(); }
  Communicator& expert_ranks() { return *groups_.experts->control_block; }
  // The ranks that read each sample of a step between them, and those that see each token, for
  // control traffic.
  Communicator& readers() { return *groups_.control.samples; }
  Communicator& seers() { return *groups_.control.all; }
  // The ranks that hold the stages between them, for control traffic.
  Communicator& stage_ranks() { return *groups_.control.pipe; }
  // Hears of what layers send over the ranks that share each matrix.
  CommListener& tensor_listener() { return *groups_.tensor_listener; }
  // The ranks that hold between them each parameter of a shard, for control traffic.
  Communicator& tensor_ranks() { return *groups_.control.tensor; }
  int zero_stage() const { return zero_stage_; }
  Model& model() const { return model_; }

  // Whether some values are whole only between UNSHARD and RESHARD.
  bool frees_values() const { return zero_stage_ == 3 && sharded_; }
  // Of each stage of the model; those of other ranks have no layers here.
  const std::vector<StageUnits>& stages() const { return stages_; }

  // The step. begin_step() forgets the last one's gradients; execute() runs UNSHARD and
  // REDUCE_GRAD, which start a collective, and RESHARD. Before a computation of one layer, or of
  // all, ready_*() wait for what it reads and make room for what it adds to. Reductions add (+=) to
  // the shard's gradient.
  void begin_step(TraceRecorder* trace);
  void execute(const Action& action);
  void ready_values(const Action& computation);
  void ready_grads(const Action& computation);
  // Starts to sum the gradients of a tied table's two copies, shard by shard, behind the reductions
  // of data ranks. `owners`: the ranks that hold one each.
  void reduce_tied(const Action& action, Communicator& owners);
  void finish_grads();  // after it shards hold the whole sum
  void end_step();      // after it no gather is in flight
  // Lets go of all that is gathered or being gathered, as if nothing had been.
  void forget_gathers();

  // Filling a unit from outside: whole values to write to, then this rank's part kept of them.
  void open_values(ParamUnit& unit);
  void keep_values(ParamUnit& unit);
  // When shards have been set from outside: the same values where a rank keeps units whole.
  // Collective.
  void gather_kept_values();

 private:
  struct Held;  // a unit's buffers and what is in flight for it

  Held hold(ParamUnit& unit, std::size_t index);
  void allocate_shard(Held& held, bool with_grads);
  template <class F>
  void for_layers_of(const Action& computation, const F& f);
  void unshard(const Action& action, Held& held);
  void reshard(Held& held);
  void reduce_grad(const Action& action, Held& held);
  void open_grads(Held& held);
  void finish_gather(Held& held);
  void finish_reduction(Held& held);
  void finish_reductions();
  void finish_tied();
  void sum_whole_units();
  void sum_over_replicas();
  double now_us() const;
  void wait(Work& work, const Action& action, TraceLane lane, double began_us);

  Model& model_;
  std::vector<StageUnits> stages_;
  RankGroups& groups_;
  ReplicaSums replica_sums_;
  int zero_stage_;
  bool sharded_;  // some units have shards, of more than one rank
  std::vector<Held> held_;
  std::vector<UnitShard> shards_;
  std::optional<Action> tying_;  // in flight
  double tying_began_us_ = 0.0;
  Work tied_;
  TraceRecorder* trace_ = nullptr;
};

// What each layer of a rank's stages asks of its units, numbered as in model.units(). Stages up to
// the model's last one on this rank; those between that are elsewhere have no layers.
std::vector<StageUnits> stage_units(const Model& model);

// Keeps every value whole while it lives: for decoding and saving, which have no schedule. Made and
// destroyed by all data ranks together.
class WholeValues {
 public:
  explicit WholeValues(ZeroUnits& units);
  ~WholeValues();
  WholeValues(const WholeValues&) = delete;
  WholeValues& operator=(const WholeValues&) = delete;

 private:
  void for_each_unit(ActionKind kind);
  ZeroUnits& units_;
};

}  // namespace quatrain
