// SPDX-License-Identifier: Apache-2.0
// The communicators of a rank, made once, at start, in one order on every rank.
#pragma once
#include <memory>
#include <optional>

#include "quatrain/comm/communicator.h"
#include "quatrain/comm/timed.h"
#include "quatrain/mesh/mesh.h"

namespace quatrain {

struct RankGroups {
  std::unique_ptr<Communicator> all;              // dp_replicate x dp_shard x cp: other tokens each
  std::unique_ptr<Communicator> shard;            // ranks that share one copy of the parameters
  std::unique_ptr<Communicator> replicate;        // ranks that hold the same shard
  std::unique_ptr<CommListener> tensor_listener;  // hears of the next one's operations
  std::unique_ptr<Communicator> tensor;           // ranks that share each matrix
  std::unique_ptr<Communicator> context;          // ranks that share each sequence
  std::unique_ptr<Communicator> pipe;             // ranks that hold the stages between them
  // The same ranks again, for control traffic.
  struct Control {
    std::unique_ptr<Communicator> samples;       // dp_replicate x dp_shard: each sample once
    std::unique_ptr<Communicator> all;           // counts and losses: each token is seen once here
    std::unique_ptr<Communicator> pipe;          // numbers and tensors of other stages
    std::unique_ptr<Communicator> shard;         // pieces of a unit
    std::unique_ptr<Communicator> tensor;        // pieces of a tensor
    std::unique_ptr<Communicator> shard_tensor;  // norms: every element of a stage is held here
    std::unique_ptr<Communicator> alone;
  } control;
  // Of routed experts, which the ranks of a stage share in the mesh's other view.
  struct Experts {
    std::unique_ptr<Communicator> all;        // ranks that hold the same experts
    std::unique_ptr<Communicator> shard;      // of them, those that share one copy
    std::unique_ptr<Communicator> replicate;  // ranks that hold the same shard
    std::unique_ptr<Communicator> exchange;   // ranks that rows are exchanged with
    // For control traffic.
    std::unique_ptr<Communicator> control_shard;  // pieces of a unit
    std::unique_ptr<Communicator> control_block;  // every expert is held here once
    std::unique_ptr<Communicator> control_all;    // norms: shards of every expert
  };
  std::optional<Experts> experts;
};
// Names are group_name()'s, "ep" for the exchange of rows, "control" for those of control traffic.
// `experts`: whether the model has any.
RankGroups make_rank_groups(Communicator& world, const Mesh& mesh, bool experts);

}  // namespace quatrain
